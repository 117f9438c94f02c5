# SPDX-License-Identifier: Apache-2.0
"""The witness of a paged cache of keys and values, beside a scheduler as vLLM's: blocks that are shared by their tokens,
freed, kept for a later hit and evicted, prompts in chunks, requests that are preempted and come again."""

from __future__ import annotations

import collections
import random
import types
from typing import Callable, Optional

import pytest
import torch

from rankprobe.vllm._cache import RunnerCache, why_not_witnessed
from rankprobe.vllm._cache_witness import CacheWitness, Fault, Row, layers_of
from rankprobe.vllm._steps import Steps

SIZE, BLOCKS, LAYERS = 4, 28, 3
# What a row of the cache holds of one token at one position, by layer: as many numbers as heads times their width.
_WIDTH = 8


class Request:
    def __init__(self, name: str, prompt: list[int], answer: int) -> None:
        self.name, self.tokens, self.wanted = name, prompt, len(prompt) + answer
        self.computed = 0
        self.blocks: list[int] = []
        # Of chunked prefill: tokens whose answers are not chosen yet.
        self.chunk = 0


class Server:
    """A scheduler, its block pool and a model whose keys are a function of the tokens before. A fault is a change of what
    vLLM would do, by one of the hooks that tests set."""

    def __init__(self, seed: int, blocks: int = BLOCKS, every: int = 1) -> None:
        self.random = random.Random(seed)
        # One layer's keys lie apart from its values, so that a block of it is no one piece of memory.
        self.caches = [torch.zeros(2, blocks, SIZE, _WIDTH).transpose(0, 1) if i == 1 else torch.zeros(blocks, 2, SIZE, _WIDTH) for i in range(LAYERS)]
        layers = [(f"layers.{i}", cache.transpose(0, 1) if i == 1 else cache) for i, cache in enumerate(self.caches)]
        self.witness = CacheWitness(layers_of(layers, blocks), SIZE, every)
        # Block 0 stands for none. The oldest free one is taken first.
        self.free = collections.OrderedDict.fromkeys(range(1, blocks))
        self.users: collections.Counter[int] = collections.Counter()
        self.by_tokens: dict[tuple[int, ...], int] = {}
        self.tokens_of: dict[int, tuple[int, ...]] = {}
        self.running: list[Request] = []
        self.waiting: collections.deque[Request] = collections.deque()
        self.faults: list[Fault] = []
        self.step_number = self.hits = self.evictions = self.preemptions = self.done = 0
        self.change_rows: Optional[Callable[[list[tuple[Request, int]]], None]] = None
        self.change_slots: Optional[Callable[[Request, torch.Tensor], torch.Tensor]] = None

    def ask(self, name: str, prompt: list[int], answer: int) -> Request:
        self.waiting.append(Request(name, list(prompt), answer))
        return self.waiting[-1]

    def take(self) -> Optional[int]:
        if not self.free:
            return None
        block, _ = self.free.popitem(last=False)
        if block in self.tokens_of:
            self.evictions += 1
            del self.by_tokens[self.tokens_of.pop(block)]
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        self.hits += 1
        self.free.pop(block, None)
        self.users[block] += 1

    def give(self, request: Request) -> None:
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None
        request.blocks = []

    def _grow(self, request: Request, end: int) -> bool:
        while len(request.blocks) * SIZE < end:
            block = self.take()
            if block is None:
                return False
            request.blocks.append(block)
        # Known from here on, also to a request that is scheduled in this same step.
        for index in range(request.computed // SIZE, end // SIZE):
            key, block = tuple(request.tokens[:(index + 1) * SIZE]), request.blocks[index]
            if key not in self.by_tokens and block not in self.tokens_of:
                self.by_tokens[key], self.tokens_of[block] = block, key
        return True

    def _schedule(self) -> list[tuple[Request, int]]:
        batch = []
        for request in list(self.running):
            if request not in self.running:
                continue
            count = min(len(request.tokens) - request.computed, 6)
            while not self._grow(request, request.computed + count):
                victim = self.running[-1]
                self.preemptions += 1
                self.running.remove(victim)
                batch = [(one, tokens) for one, tokens in batch if one is not victim]
                self.give(victim)
                victim.computed = 0
                self.waiting.appendleft(victim)
                if victim is request:
                    break
            if request in self.running:
                batch.append((request, count))
        while self.waiting and len(self.running) < 8:
            request = self.waiting[0]
            for index in range((len(request.tokens) - 1) // SIZE):
                block = self.by_tokens.get(tuple(request.tokens[:(index + 1) * SIZE]))
                if block is None:
                    break
                self.share(block)
                request.blocks.append(block)
            request.computed = len(request.blocks) * SIZE
            count = min(len(request.tokens) - request.computed, 6)
            if not self._grow(request, request.computed + count):
                self.give(request)
                request.computed = 0
                break
            self.running.append(self.waiting.popleft())
            batch.append((request, count))
        return batch

    def step(self) -> None:
        batch = self._schedule()
        if self.change_rows is not None:
            self.change_rows(batch)
        rows, written = [], []
        for request, count in batch:
            positions = torch.arange(request.computed, request.computed + count)
            slots = torch.tensor(request.blocks)[positions // SIZE] * SIZE + positions % SIZE
            if self.change_slots is not None:
                slots = self.change_slots(request, slots)
            tokens = torch.tensor(request.tokens)
            rows.append(Row(request.name, request.computed, count, lambda begin, end, tokens=tokens: tokens[begin:end], request.blocks[:]))
            written.append((tokens[request.computed:request.computed + count], slots))
        if rows:
            self.faults += self.witness.before(self.step_number, rows, *(torch.cat(parts) for parts in zip(*written)))
        for (request, count), (_, slots) in zip(batch, written):
            self._compute(request, count, slots)
        self.witness.after()
        self.step_number += 1

    def _compute(self, request: Request, count: int, slots: torch.Tensor) -> None:
        seed = hash(tuple(request.tokens[:request.computed + 1])) % 1000
        for layer, cache in enumerate(self.caches):
            rows = torch.arange(count * 2 * _WIDTH, dtype=torch.float32).reshape(count, 2, _WIDTH) + seed + layer
            cache[slots // SIZE, :, slots % SIZE] = rows
        request.computed += count
        if request.computed < len(request.tokens):
            return
        if len(request.tokens) < request.wanted:
            request.tokens.append(self.random.randrange(1000))
            return
        self.running.remove(request)
        self.give(request)
        self.witness.ended([request.name])
        self.done += 1


def serve(server: Server, requests: int, before_step: Callable[[], None] = lambda: None) -> None:
    """Prompts that share beginnings, as chats with one system prompt do."""
    shared = [[server.random.randrange(1000) for _ in range(12)] for _ in range(6)]
    asked = 0
    while server.done < requests:
        while asked < requests and len(server.waiting) < 4:
            begin = server.random.choice(shared)[:server.random.randrange(13)]
            own = [server.random.randrange(1000) for _ in range(server.random.randrange(1, 8))]
            server.ask(f"r{asked}", begin + own, server.random.randrange(1, 8))
            asked += 1
        before_step()
        server.step()


@pytest.mark.parametrize("requests, every", [(300, 1), (300, 5), (10_000, 1)])
def test_healthy_traffic_has_no_finding(requests: int, every: int) -> None:
    server = Server(seed=7, every=every)
    serve(server, requests)
    assert server.faults == []
    assert min(server.hits, server.evictions, server.preemptions) > requests // 100, (server.hits, server.evictions, server.preemptions)
    assert server.witness.blocks_checked > requests


class Planted:
    """One fault, planted once there are requests of the right kind; the healthy traffic goes on around it."""

    def __init__(self, kind: str, seed: int) -> None:
        self.server = Server(seed, blocks=64)  # nobody is preempted, so that what is planted is read
        self.kind, self.reader, self.writer, self.block = kind, "", "", 0
        self.planted_at = -1
        self.layer = self.server.random.randrange(LAYERS)

    def run(self) -> list[Fault]:
        plant = getattr(self, self.kind)

        def before_step() -> None:
            if self.planted_at < 0 and self.server.step_number > 20 and plant():
                self.planted_at = self.server.step_number

        serve(self.server, 60, before_step)
        assert self.planted_at >= 0, "nothing to plant it in"
        return self.server.faults

    def _running(self, full_blocks: int = 1) -> list[Request]:
        """With as many full blocks, and some steps to go."""
        return [request for request in self.server.running
                if request.computed >= full_blocks * SIZE and len(request.tokens) + 2 < request.wanted]

    def flipped_value(self) -> bool:
        found = self._running()
        if not found:
            return False
        request, random_ = found[0], self.server.random
        self.reader, self.block = request.name, request.blocks[random_.randrange(request.computed // SIZE)]
        bits = self.server.caches[self.layer].view(torch.int32)
        bits[self.block, 1, random_.randrange(SIZE), random_.randrange(_WIDTH)] ^= 1 << random_.randrange(31)
        return True

    def swapped_entry(self) -> bool:
        """The block table of a request has an entry of another."""
        found = self._running()
        others = [request for request in found[1:] if request.blocks[0] != found[0].blocks[0]]
        if not others:
            return False
        self.reader, self.writer, self.block = found[0].name, "", others[0].blocks[0]
        request, mine = found[0], found[0].blocks[0]

        def swap(batch: list[tuple[Request, int]]) -> None:
            """The table of one step alone: the block pool is not confused."""
            if any(one is request for one, _ in batch):
                request.blocks[0] = self.block

        def give_back() -> None:
            request.blocks[0] = mine

        self.server.change_rows = swap
        compute = self.server._compute

        def computed(one: Request, count: int, slots: torch.Tensor) -> None:
            if one is request:
                give_back()
                self.server.change_rows = None
            compute(one, count, slots)

        self.server._compute = computed  # type: ignore[method-assign]
        return True

    def wrong_slot(self) -> bool:
        """A row is written one block on, into what another request has there."""
        found = [request for request in self._running() if request.computed == len(request.tokens) - 1]
        others = [request for request in self._running() if found and request.blocks[0] != found[0].blocks[0]]
        if not others:
            return False
        writer, self.block = found[0], others[0].blocks[0]
        self.reader = writer.name

        def change(request: Request, slots: torch.Tensor) -> torch.Tensor:
            if request is not writer:
                return slots
            self.server.change_slots = None
            return slots % SIZE + self.block * SIZE

        self.server.change_slots = change
        return True

    def reused_while_read(self) -> bool:
        """A block of a running request is given back, and goes to the next one."""
        found = [request for request in self._running(2) if self.server.users[request.blocks[0]] == 1 and len(request.tokens) + 3 < request.wanted]
        if not found:
            return False
        self.reader, self.block = found[0].name, found[0].blocks[0]
        self.server.users[self.block] = 0
        self.server.free[self.block] = None
        self.server.free.move_to_end(self.block, last=False)
        # So that it can be given back a second time, by its first owner.
        self.server.users[self.block] -= 1
        if self.block in self.server.tokens_of:
            del self.server.by_tokens[self.server.tokens_of.pop(self.block)]
        first = self.server.take()
        assert first == self.block
        prompt = [self.server.random.randrange(1000) for _ in range(5)]
        self.writer = "thief"
        thief = Request("thief", prompt, 9)
        thief.blocks = [self.block]
        self.server.users[self.block] = 2
        self.server.running.insert(0, thief)
        return True

    def stale_hit(self) -> bool:
        """A block that was evicted and written again is still found by its old tokens."""
        server = self.server
        old = [(key, block) for key, block in server.by_tokens.items() if len(key) == SIZE and not server.users[block]]
        if not old:
            return False
        key, self.block = old[0]
        # Evicted and taken by another request, and the map keeps the old tokens.
        del server.by_tokens[key], server.tokens_of[self.block]
        server.free.pop(self.block)
        server.users[self.block] = 1
        writer = Request("new owner", [server.random.randrange(1000) for _ in range(5)], 12)
        writer.blocks = [self.block]
        self.reader, self.writer = "late", "new owner"
        server.running.insert(0, writer)
        server.step()
        server.share(self.block)
        late = Request("late", [*key, 5, 6], 4)
        late.blocks, late.computed = [self.block], SIZE
        assert server._grow(late, len(late.tokens))
        server.running.insert(0, late)
        return True

    def not_copied(self) -> bool:
        """Two answers of one prompt write into one block, which each should have for itself."""
        found = [request for request in self._running() if request.computed == len(request.tokens) - 1 and request.computed % SIZE == 2]
        if not found:
            return False
        request = found[0]
        twin = Request("twin", list(request.tokens[:-1]) + [1001], request.wanted - len(request.tokens) + 2)
        twin.blocks, twin.computed = list(request.blocks), request.computed
        for block in twin.blocks:
            self.server.users[block] += 1
        self.reader, self.writer, self.block = request.name, "twin", request.blocks[-1]
        self.server.running.append(twin)
        return True


_KINDS = {"flipped_value": "changed", "swapped_entry": "tokens", "wrong_slot": "slot", "reused_while_read": "tokens",
          "stale_hit": "tokens", "not_copied": "tokens"}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", _KINDS)
def test_a_planted_fault_is_named(kind: str, seed: int) -> None:
    planted = Planted(kind, seed)
    faults = planted.run()
    assert faults, "not found"
    first = faults[0]
    assert (first.kind, first.block) == (_KINDS[kind], planted.block), first
    assert first.reader == planted.reader or kind == "flipped_value", (first, planted.reader)
    assert planted.writer in ("", first.writer), (first, planted.writer)
    assert planted.planted_at <= first.step <= planted.planted_at + 4, (planted.planted_at, first)
    assert kind != "flipped_value" or first.layer == f"layers.{planted.layer}", first
    assert {fault.block for fault in faults} == {planted.block}, faults
    assert first.written >= 0 and first.text.startswith(f"block {planted.block} of ") and first.reader in first.what and first.writer in first.what


@pytest.mark.parametrize("adopts", [False, True])
def test_what_nobody_was_seen_to_write(adopts: bool) -> None:
    """A KV connector loads blocks past the model; without one nothing does."""
    cache = torch.zeros(4, SIZE, _WIDTH)
    witness = CacheWitness(layers_of([("layers.0", cache)], 4), SIZE, adopts=adopts)
    tokens = torch.arange(9)

    def step(number: int, computed: int) -> list[Fault]:
        row = Row("a", computed, 1, lambda begin, end: tokens[begin:end], [2, 1])
        found = witness.before(number, [row], tokens[computed:computed + 1], torch.tensor([SIZE + computed % SIZE]))
        witness.after()
        return found

    found = [(fault.kind, fault.what) for fault in step(0, SIZE)]
    assert found == ([] if adopts else [("unwritten", 'request "a" reads its position 0 from it, and nothing was written there')])
    assert step(1, SIZE + 1) == []
    cache[2, 0, 0] = 1
    (changed,) = step(2, SIZE + 2)
    assert changed.block == 2 and ("it came from elsewhere, request" in changed.what), changed
    # What stands in the table for no row of the cache is told, and written nowhere.
    row = Row("a", SIZE + 3, 1, lambda begin, end: tokens[begin:end], [2, 1])
    (slot,) = witness.before(3, [row], tokens[:1], torch.tensor([-1]))
    assert slot.kind == "slot" and "is written into its row 0 by the slot mapping, and the block table says row 3 of block 1" in slot.what, slot


class Runner:
    """What the witness reads of vLLM's runner: one group of two layers, blocks of four tokens, a table of two requests."""

    def __init__(self, model: torch.nn.Module, layers: dict[str, types.SimpleNamespace]) -> None:
        self.model = model
        group = types.SimpleNamespace(layer_names=list(layers), kv_cache_spec=type("FullAttentionSpec", (), {})())
        self.kv_cache_config = types.SimpleNamespace(kv_cache_groups=[group], num_blocks=8)
        self.blocks = torch.zeros(2, 4, dtype=torch.int32)
        self.slots = torch.zeros(16, dtype=torch.int64)
        table = types.SimpleNamespace(block_size=4, slot_mapping=types.SimpleNamespace(gpu=self.slots), get_cpu_tensor=lambda: self.blocks)
        self.input_batch = types.SimpleNamespace(req_ids=[], req_id_to_index={}, num_computed_tokens_cpu=[], block_table=[table],
                                                 token_ids_cpu_tensor=torch.zeros(2, 16, dtype=torch.int32))

    def execute_model(self, scheduled: types.SimpleNamespace) -> bool:
        ids = []
        for row, request in enumerate(self.input_batch.req_ids):
            begin = self.input_batch.num_computed_tokens_cpu[row]
            positions = torch.arange(begin, begin + scheduled.num_scheduled_tokens[request])
            self.slots[len(ids):len(ids) + len(positions)] = self.blocks[row][positions // 4] * 4 + positions % 4
            ids += self.input_batch.token_ids_cpu_tensor[row][positions].tolist()
        self.model(input_ids=torch.tensor(ids))
        return True

    def serve(self, requests: dict[str, tuple[int, list[int], list[int]]]) -> None:
        """By request what is computed of it, its tokens and its blocks."""
        batch = self.input_batch
        batch.req_ids, batch.req_id_to_index = list(requests), {request: row for row, request in enumerate(requests)}
        batch.num_computed_tokens_cpu = [computed for computed, _, _ in requests.values()]
        for row, (_, tokens, blocks) in enumerate(requests.values()):
            batch.token_ids_cpu_tensor[row, :len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            self.blocks[row, :len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        counts = {request: len(tokens) - computed for request, (computed, tokens, _) in requests.items()}
        self.execute_model(types.SimpleNamespace(num_scheduled_tokens=counts, total_num_scheduled_tokens=sum(counts.values()), finished_req_ids=set()))


class Model(torch.nn.Module):
    """Each layer writes its rows to where the slot mapping says."""

    def __init__(self, caches: list[torch.Tensor]) -> None:
        super().__init__()
        self.embed, self.caches = torch.nn.Embedding(32, 6), caches

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = self.embed(input_ids).detach()
        slots = self.runner.slots[:len(rows)]
        for cache in self.caches:
            cache[slots // 4, slots % 4] = rows
        return rows


@pytest.mark.parametrize("recorded", [True, False])
def test_diagnose_names_the_block_first(dump, collector, monkeypatch: pytest.MonkeyPatch, recorded: bool) -> None:
    """Request b reads a block that a wrote, in whose second layer a value has changed since. Recorded or not, the run says so."""
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "cached")
    debugger = dump.debugger(level="L0", step=[] if recorded else [0, 2])
    layers = {f"layers.{i}.attn": types.SimpleNamespace(kv_cache=torch.zeros(8, 4, 6)) for i in range(2)}
    caches = [layer.kv_cache for layer in layers.values()]
    model, said = Model(caches), []
    runner = Runner(model, layers)
    object.__setattr__(model, "runner", runner)
    config = types.SimpleNamespace(compilation_config=types.SimpleNamespace(static_forward_context=layers), kv_transfer_config=None)
    Steps(runner, model, debugger, said.append, None, RunnerCache(runner, config, 1, debugger, said.append)).install()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    runner.serve({"a": (0, prompt, [1, 2])})
    caches[1][1, 3, 5] += 1
    runner.serve({"b": (4, [*prompt[:4], 7, 7], [1, 3]), "c": (0, [8], [4])})
    runner.serve({"b": (6, [*prompt[:4], 7, 7, 8], [1, 3]), "c": (1, [8, 8], [4])})
    debugger.close()
    block = "block 1 of layers.1.attn"
    what = 'it changed between write and read: request "a" wrote it in step 0, request "b" reads its positions 0 to 3 from it'
    assert said == [f"kv cache, step 1: {block}: {what}"]
    found = collector.cli("diagnose", "run:cached", check=False)
    assert found.returncode == 1 and "First: step 1" in found.stdout and block in found.stdout and what in found.stdout, found.stdout + found.stderr
    for request, code in (("b", 1), ("a", 0), ("c", 0)):
        of_request = collector.cli("diagnose", "run:cached", "--request", request, check=False)
        named = what in of_request.stdout
        assert (of_request.returncode, named) == (code, bool(code)), of_request.stdout + of_request.stderr
    assert "rankprobe events --run cached" in found.stdout


def test_what_cannot_be_witnessed_is_said() -> None:
    parallel = types.SimpleNamespace(decode_context_parallel_size=1)
    runner = Runner(torch.nn.Module(), {})
    assert why_not_witnessed(types.SimpleNamespace(parallel_config=parallel), runner) == ""
    assert "speculative" in why_not_witnessed(types.SimpleNamespace(parallel_config=parallel, speculative_config=object()), runner)
    parallel.decode_context_parallel_size = 2
    assert "context parallel" in why_not_witnessed(types.SimpleNamespace(parallel_config=parallel), runner)
    assert "another way" in why_not_witnessed(types.SimpleNamespace(parallel_config=types.SimpleNamespace()), types.SimpleNamespace())
