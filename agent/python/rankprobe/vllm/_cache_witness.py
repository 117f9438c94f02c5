# SPDX-License-Identifier: Apache-2.0
"""Witness of a paged KV cache, which checks that requests read the keys and values that were written for them.

For each row of the cache (a slot) it keeps a hash of the request's tokens up to the position, the request that wrote
it, and the step. For each block and layer it keeps a digest of the bytes, computed at the end of the step that wrote
to it. Before a step it compares both with what the step is about to read, and compares the slots that the step writes
with the block table. Depends on PyTorch but not on vLLM.
"""

from __future__ import annotations

import array
import json
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch

from rankprobe import _native

# Constants of splitmix64 and others as signed 64-bit integers; products wrap around.
_TOKEN, _POSITION, _FIRST, _SECOND = -0x61C8864680B583EB, -0x4B47D0C5A1A2B69D, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
# Limits for the kept names of writing requests, of which the newest are kept, and for the remembered reports.
_MOST_NAMES = 100_000
_MOST_TOLD = 10_000
_NOBODY = "(unknown)"


class Fault(NamedTuple):
    """A block whose content differs from what a request should read, or a row written to a wrong slot."""

    # "changed": the bytes differ from those written. "tokens": it holds other tokens. "unwritten": nothing was written.
    # "slot": a row is written to another slot than the block table says.
    kind: str
    step: int
    layer: str
    block: int
    position: int
    reader: str
    writer: str
    written: int  # step of the write; -1 if unknown
    what: str

    @property
    def text(self) -> str:
        """The message. `rankprobe diagnose` parses it: the place is before the first ": ", and requests are in quotes."""
        return f"block {self.block} of {self.layer}: {self.what}"


class Row(NamedTuple):
    """The part of a step that belongs to one request."""

    request: str
    # Number of tokens before those of this step; their keys and values are read from the cache.
    computed: int
    # Number of tokens of this step.
    length: int
    # Takes (begin, end) and returns the tokens at these positions, int64 on the host. Only for positions before `computed`.
    known: Callable[[int, int], torch.Tensor]
    # The request's row of the block table, as far as these tokens reach.
    blocks: list[int]


class _Request:
    def __init__(self, number: int) -> None:
        self.number = number
        # For each position, the hash of the tokens up to it.
        self.hashes = array.array("q")
        # Blocks whose tokens were verified to be the request's, and the clock of that check.
        self.blocks: list[int] = []
        self.at = 0


class _Read(NamedTuple):
    """The blocks that a step reads, in sequence."""

    blocks: torch.Tensor
    # Owner of each block: (index of the row, index of the block in it).
    owners: list[tuple[int, int]]
    # Clock at which the request's tokens were last verified in it; -1 for never.
    at: torch.Tensor
    # Whether the block is only partly filled, so that this step writes to it too.
    partial: torch.Tensor


class CacheWitness:
    """Witness of the layers that share one block table. Used only by the thread that runs the model.

    layers: (name, tensor whose dimension 0 is the block). block_size: rows of a block. every: interval in steps at which the
    bytes of a completed block are checked; they are also checked when a request reads the block for the first time. adopts:
    content that no running request is known to have written comes from another source (a KV connector), and is accepted as it
    is at the first read.
    """

    def __init__(self, layers: Sequence[tuple[str, torch.Tensor]], block_size: int, every: int = 1, adopts: bool = False) -> None:
        self.names = [name for name, _ in layers]
        self._tensors = [tensor for _, tensor in layers]
        self._size, self._every, self._adopts = block_size, every, adopts
        blocks = len(self._tensors[0])
        self._weights: dict[int, torch.Tensor] = {}
        # By slot: hash of the tokens up to it, position (-1 if never written), number of the writer, and step of the write.
        self._hash = torch.zeros(blocks * block_size, dtype=torch.int64)
        self._position, self._writer, self._step = (torch.full((blocks * block_size,), -1) for _ in range(3))
        # By block: number of the last writer, and, in values of _clock, when the writer last changed and when the bytes were
        # last checked.
        self._last_writer = torch.full((blocks,), -1)
        self._version, self._looked = (torch.zeros(blocks, dtype=torch.int64) for _ in range(2))
        self._digests = torch.zeros(len(layers), blocks, dtype=torch.int64, device=self._tensors[0].device)
        self._digested = torch.zeros(blocks, dtype=torch.bool)
        self._clock = 0
        self._requests: dict[str, _Request] = {}
        self._names: dict[int, str] = {}
        self._numbers = 0
        self._touched = torch.zeros(0, dtype=torch.int64)
        self._told: set[tuple[str, int, int]] = set()
        self.blocks_checked = 0

    def ended(self, requests: Sequence[str]) -> None:
        """Forgets these requests, which have ended."""
        for request in requests:
            self._requests.pop(request, None)

    def before(self, step: int, rows: Sequence[Row], tokens: torch.Tensor, slots: torch.Tensor) -> list[Fault]:
        """Checks what the step, which is about to run, reads and where it writes. Returns new faults; content that was reported is
        accepted afterwards. tokens, slots: the tokens of all rows and the slots that they are written to; 1-D, int64, on the host."""
        # Takes the digests of the previous step if after() was not called for it.
        self.after()
        self._clock += 1
        if not rows:
            return []
        followed = [self._follow(row) for row in rows]
        # Registers writes first, because a request may read what another one writes in the same step.
        faults = self._write(step, rows, followed, tokens, slots)
        read = self._reads(rows, followed)
        if len(read.owners):
            faults += self._read_tokens(step, rows, followed, read)
            faults += self._read_bytes(step, rows, read)
        return faults

    def after(self) -> None:
        """Computes the digests of the blocks that the step, which has run, has written."""
        if not len(self._touched):
            return
        self._digests[:, self._touched.to(self._digests.device)] = self._digest(self._touched)
        self._digested[self._touched] = True
        self._looked[self._touched] = self._clock
        self._touched = self._touched[:0]

    def _follow(self, row: Row) -> _Request:
        """Returns the request of a row, with hashes for exactly the tokens before the step."""
        request = self._requests.get(row.request)
        if request is None:
            self._numbers += 1
            request = self._requests[row.request] = _Request(self._numbers)
            self._names[self._numbers] = row.request
            if len(self._names) > _MOST_NAMES:
                del self._names[next(iter(self._names))]
        del request.hashes[row.computed:]
        known = len(request.hashes)
        if known < row.computed:
            mixed = _mixed(row.known(known, row.computed), torch.arange(known, row.computed))
            mixed[0] += request.hashes[-1] if known else 0
            request.hashes.extend(mixed.cumsum(0).tolist())
        return request

    def _write(self, step: int, rows: Sequence[Row], followed: list[_Request], tokens: torch.Tensor, slots: torch.Tensor) -> list[Fault]:
        counts = torch.tensor([row.length for row in rows])
        ends = counts.cumsum(0)
        of_row = torch.repeat_interleave(torch.arange(len(rows)), counts)
        positions = torch.arange(len(of_row)) + (torch.tensor([row.computed for row in rows]) - ends + counts)[of_row]
        # One cumulative sum over all rows; each row subtracts the sum before its own tokens.
        sums = _mixed(tokens, positions).cumsum(0)
        before = torch.cat([sums.new_zeros(1), sums[ends[:-1] - 1]]) - torch.tensor([request.hashes[-1] if request.hashes else 0 for request in followed])
        hashes = sums - before[of_row]
        listed = hashes.tolist()
        begin, blocks = 0, []
        for row, request in zip(rows, followed):
            request.hashes.extend(listed[begin:begin + row.length])
            begin += row.length
            blocks += [row.blocks[position // self._size] for position in range(row.computed, row.computed + row.length)]
        meant = torch.tensor(blocks) * self._size + positions % self._size
        # Invalid slots are mapped to block 0, whose content is not checked.
        slots = slots.where((slots >= 0) & (slots < len(self._hash)), 0)
        faults = []
        if not torch.equal(meant, slots):
            faults = self._tell_slots(step, rows, of_row, positions, meant, slots)
        numbers = torch.tensor([request.number for request in followed])[of_row]
        # After a wrong slot mapping, the intended slots are registered too, so that the fault is reported only once, here.
        for where in [slots] if not faults else [meant, slots]:
            self._hash[where], self._position[where], self._writer[where], self._step[where] = hashes, positions, numbers, step
            into = where // self._size
            self._version[into[self._last_writer[into] != numbers]] = self._clock
            self._last_writer[into] = numbers
        self._touched = torch.unique(into)
        return faults

    def _tell_slots(self, step: int, rows: Sequence[Row], of_row: torch.Tensor, positions: torch.Tensor, meant: torch.Tensor,
                    slots: torch.Tensor) -> list[Fault]:
        faults: list[Fault] = []
        for index in torch.nonzero(meant != slots).flatten().tolist():
            row, position, slot, right = rows[int(of_row[index])], int(positions[index]), int(slots[index]), int(meant[index])
            owner, written = self._who(slot)
            was = f"; the row held what request {_quoted(owner)} wrote in step {written}" if written >= 0 else ""
            faults += self._tell("slot", step, slot // self._size, row, position, slot,
                                 f"position {position} of request {_quoted(row.request)} is written into its row {slot % self._size} by the slot "
                                 f"mapping, and the block table says row {right % self._size} of block {right // self._size}{was}")
        return faults

    def _reads(self, rows: Sequence[Row], followed: list[_Request]) -> _Read:
        blocks: list[int] = []
        at: list[int] = []
        partial: list[bool] = []
        owners: list[tuple[int, int]] = []
        for number, (row, request) in enumerate(zip(rows, followed)):
            count = -(-row.computed // self._size)
            own, seen = row.blocks[:count], request.blocks
            blocks += own
            if own[:len(seen)] == seen:
                at += [request.at] * len(seen) + [-1] * (count - len(seen))
            else:
                at += [request.at if seen[index:index + 1] == own[index:index + 1] else -1 for index in range(count)]
            partial += [False] * count
            if row.computed % self._size:
                partial[-1] = True
            owners += [(number, index) for index in range(count)]
            request.blocks, request.at = own, self._clock
        return _Read(torch.tensor(blocks, dtype=torch.int64), owners, torch.tensor(at, dtype=torch.int64), torch.tensor(partial, dtype=torch.bool))

    def _read_tokens(self, step: int, rows: Sequence[Row], followed: list[_Request], read: _Read) -> list[Fault]:
        # Block 0 is a placeholder for blocks that a sliding window has left.
        look = ((read.at < 0) | (self._version[read.blocks] >= read.at)) & (read.blocks != 0)
        faults: list[Fault] = []
        wrong = set()
        for place in torch.nonzero(look).flatten().tolist():
            number, index = read.owners[place]
            # If a row of the block table is wrong, all its blocks are; only the first is reported.
            found = [] if number in wrong else self._compare_tokens(step, rows[number], followed[number], index)
            if found:
                wrong.add(number)
            faults += found
        return faults

    def _compare_tokens(self, step: int, row: Row, request: _Request, index: int) -> list[Fault]:
        begin, end = index * self._size, min((index + 1) * self._size, row.computed)
        slots = torch.arange(end - begin) + row.blocks[index] * self._size
        hashes = torch.tensor(request.hashes[begin:end])
        wrong = torch.nonzero((self._hash[slots] != hashes) | (self._position[slots] < 0))
        if not len(wrong):
            return []
        first = int(wrong[0])
        slot, position = int(slots[first]), begin + first
        owner, written = self._who(slot)
        held = int(self._position[slot])
        if self._adopts and (held < 0 or owner not in self._requests):
            self._hash[slots], self._position[slots] = hashes, torch.arange(begin, end)
            self._writer[slots] = self._step[slots] = -1
            self._digested[row.blocks[index]] = False
            return []
        reads = f"request {_quoted(row.request)} reads its position {position} from it"
        if held < 0:
            return self._tell("unwritten", step, slot // self._size, row, position, slot, f"{reads}, and nothing was written there")
        ended = "" if owner in self._requests else ", which has ended,"
        when = "this step" if written == step else f"step {written}"
        return self._tell("tokens", step, slot // self._size, row, position, slot,
                          f"{reads}, and it holds position {held} of other tokens, which request {_quoted(owner)}{ended} wrote in {when}")

    def _read_bytes(self, step: int, rows: Sequence[Row], read: _Read) -> list[Fault]:
        # Blocks that another request writes in this step have no digest yet.
        due = (self._clock - self._looked[read.blocks] >= self._every) | (read.at < 0) | read.partial
        due &= (read.blocks != 0) & (self._step[read.blocks * self._size] != step)
        places = torch.nonzero(due).flatten()
        if not len(places):
            return []
        blocks, order = torch.unique(read.blocks[places], return_inverse=True)
        readers = dict(zip(order.tolist(), places.tolist()))
        self.blocks_checked += len(blocks)
        self._looked[blocks] = self._clock
        found, at = self._digest(blocks), blocks.to(self._digests.device)
        # Blocks from another source have no digest and are accepted at the first read.
        differs = (found != self._digests[:, at]) & self._digested[blocks].to(found.device)
        self._digested[blocks] = True
        self._digests[:, at] = found
        if not bool(differs.any()):
            return []
        faults: list[Fault] = []
        for column in torch.nonzero(differs.any(0)).flatten().tolist():
            layers = torch.nonzero(differs[:, column]).flatten().tolist()
            block = int(blocks[column])
            number, index = read.owners[readers[column]]
            row = rows[number]
            begin, end = index * self._size, min((index + 1) * self._size, row.computed)
            slot = block * self._size + end - begin - 1
            owner, written = self._who(slot)
            others = "" if len(layers) == 1 else f" (and in {len(layers) - 1} other layers)"
            wrote = f"request {_quoted(owner)} wrote it in step {written}" if written >= 0 else "it came from elsewhere"
            faults += self._tell("changed", step, block, row, begin, slot,
                                 f"it changed between write and read{others}: {wrote}, request {_quoted(row.request)} reads its positions "
                                 f"{begin} to {end - 1} from it", self.names[layers[0]])
        return faults

    def _who(self, slot: int) -> tuple[str, int]:
        return self._names.get(int(self._writer[slot]), _NOBODY), int(self._step[slot])

    def _tell(self, kind: str, step: int, block: int, row: Row, position: int, slot: int, what: str, layer: str = "") -> list[Fault]:
        """Returns a fault, or nothing if it was reported for this content of the block; otherwise each step and each reader would
        repeat it."""
        told = (kind, block, int(self._version[block]) if kind == "tokens" else self._clock)
        if told in self._told:
            return []
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told.add(told)
        owner, written = self._who(slot)
        return [Fault(kind, step, layer or f"all {len(self.names)} layers", block, position, row.request, owner, written, what)]

    def _digest(self, blocks: torch.Tensor) -> torch.Tensor:
        """Returns the digests of the blocks, int64 of shape [layer, block]."""
        return torch.stack([_digest_memory(tensor, blocks.tolist()) if tensor.device.type == "cpu" and tensor[0].is_contiguous()
                            else self._weigh(tensor, blocks.to(tensor.device)) for tensor in self._tensors])

    def _weigh(self, tensor: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Computes digests on the tensor's device, as a weighted sum of each block's words. Words are mixed first, so that changes of
        the highest bits of two words do not cancel."""
        words = tensor.index_select(0, blocks).reshape(len(blocks), -1).view(torch.uint8)
        words = words.view(torch.int64) if words.shape[1] % 8 == 0 else words.to(torch.int64)
        return (words ^ (words >> 32)).mul_(self._weights_of(words)).sum(1)

    def _weights_of(self, words: torch.Tensor) -> torch.Tensor:
        weights = self._weights.get(words.shape[1])
        if weights is None:
            source = torch.Generator().manual_seed(words.shape[1])
            weights = torch.randint(-(1 << 62), 1 << 62, (words.shape[1],), generator=source, dtype=torch.int64) | 1
            weights = self._weights[words.shape[1]] = weights.to(words.device)
        return weights


def _mixed(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns a number for each token at its position; the sum of these numbers is the hash of a sequence."""
    mixed = tokens * _TOKEN + (positions + 1) * _POSITION
    mixed = (mixed ^ (mixed >> 30)) * _FIRST
    mixed = (mixed ^ (mixed >> 27)) * _SECOND
    return mixed ^ (mixed >> 31)


def _digest_memory(tensor: torch.Tensor, blocks: list[int]) -> torch.Tensor:
    begin, size = tensor.data_ptr(), tensor[0].numel() * tensor.element_size()
    stride = tensor.stride(0) * tensor.element_size()
    digests = [int(_native.memory_digest(begin + block * stride, size), 16) for block in blocks]
    return torch.tensor([digest - (1 << 64) if digest >> 63 else digest for digest in digests])


def _quoted(request: str) -> str:
    return json.dumps(request)


def layers_of(found: Sequence[tuple[str, Any]], blocks: int) -> list[tuple[str, torch.Tensor]]:
    """Returns (name, tensor with the block as dimension 0) for CacheWitness. One of the first two dimensions must count the `blocks`,
    or consecutive parts of blocks; other layers are left out. Of layers that share memory, only the first is returned."""
    out: list[tuple[str, torch.Tensor]] = []
    memory: set[int] = set()
    for name, tensor in found:
        by_block = _by_block(tensor, blocks) if isinstance(tensor, torch.Tensor) else None
        if by_block is not None and tensor.data_ptr() not in memory:
            memory.add(tensor.data_ptr())
            out.append((name, by_block))
    return out


def _by_block(tensor: torch.Tensor, blocks: int) -> Optional[torch.Tensor]:
    for dimension, length in enumerate(tensor.shape[:2]):
        if length and length % blocks == 0:
            moved = tensor.movedim(dimension, 0)
            return moved if length == blocks else moved.unflatten(0, (blocks, length // blocks))
    return None
