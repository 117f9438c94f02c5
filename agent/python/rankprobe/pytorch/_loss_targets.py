# SPDX-License-Identifier: Apache-2.0
"""Targets of a cross entropy, read from the graph of the loss before its backward.

For each loss call: the number of targets that count, the weight of one of them in the loss, and the loss of a uniform guess
(the logarithm of the number of classes). In the first steps also whether the targets are the input tokens, by how many
positions they are shifted, what the attention sees (_attention_graph.py), and whether the shapes of each loss fit
(_shape_graph.py). Calls no code of the program; tensors stay on their device, and nothing waits for them.
"""

from __future__ import annotations

import math
from typing import Any, Collection, Iterator

import torch

from rankprobe.pytorch._attention_graph import (attention_sees, masks_behind, merged_positions, repeated_masks, saved, sequence_means,
                                                  signed, softmax_dims)
from rankprobe.pytorch._layout_graph import mixed_views, norms_of_places, padding_attended, padding_pooled, positions_of_batch
from rankprobe.pytorch._leaf_graph import between_trained, data_of, image_range, stale_casts
from rankprobe.pytorch._loss_graph import NLL, OF_PROBABILITIES, moving_target, probabilities, unreachable_targets
from rankprobe.pytorch._objective_graph import dropout_masks, logits_range, pair_targets, pooled_over_batch, regression_targets
from rankprobe.pytorch._place_graph import rotary_places
from rankprobe.pytorch._sequence_graph import layers_ahead
from rankprobe.pytorch._shape_graph import loss_broadcast, sequence_dims
from rankprobe.pytorch._target_graph import undefined_targets
from rankprobe.pytorch._term_graph import inverted_term, minimised_likelihood, terms_of

_EMBEDDINGS = ("EmbeddingBackward0",)
# Limits: nodes near a loss; calls of a step; nodes of a model; steps in which the complete graph is read.
_NEAR, _MOST_CALLS, _MOST_NODES, _GRAPH_STEPS = 64, 64, 20000, 3
# Number of losses of a step whose shapes are examined.
_MOST_LOSSES = 4
_MEAN, _SUM = 1, 2
SHIFTS = (0, 1, 2)
# A row of no more tokens may end with its first one by chance.
_FEW = 4
# The largest prime below 2^24, and the maximum number of elements in a checksum.
_PRIME, _MOST_TARGETS = 16777213, 65536


# Of several losses of a step, the one with the largest first number; of the others the first.
_WORSE = ("loss_broadcast", "undefined_targets", "minimised_likelihood")


def _worse(one: list[Any], other: list[Any]) -> list[Any]:
    """Returns the list of tensors whose first is the larger. Does not wait for them."""
    if len(one) != len(other) or one[0].device != other[0].device:
        return one
    return [torch.where(other[0] > one[0], second, first) for first, second in zip(one, other)]


def _nodes(root: Any, most: int) -> Iterator[Any]:
    """Yields at most `most` nodes of a graph, the nearest first."""
    seen, line = {root}, [root]
    for node in line:
        yield node
        if len(line) >= most:
            continue
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                line.append(after)


def _checksum(target: torch.Tensor) -> torch.Tensor:
    """Returns a checksum of the elements and their order, as float64. It is below 2^24, so that float32 holds it exactly. Of a large
    tensor it samples elements from all parts, because images and masks often begin with equal elements; an odd stride reaches all
    columns."""
    target = target.reshape(-1)
    if target.numel() > _MOST_TARGETS:
        target = target[::target.numel() // _MOST_TARGETS + 1 | 1]
    if target.is_floating_point():
        target = target.float().contiguous().view(torch.int32).long()
    places = torch.arange(1, target.numel() + 1, device=target.device)
    mixed = ((target + 7) % _PRIME * 40503 + places * 48271) % _PRIME
    # A sum of products with the places would be the same of many targets that are small or in a row.
    return (mixed * mixed % _PRIME * mixed % _PRIME).sum().remainder(_PRIME).double()


def _is_one_class(target: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns 1 if all targets that count are equal, else 0, as float64."""
    # Without a target that counts, the largest is below the smallest.
    limits = torch.iinfo(target.dtype)
    largest, smallest = target.masked_fill(~counts, limits.min).amax(), target.masked_fill(~counts, limits.max).amin()
    return (largest == smallest).double()


def _ended(target: torch.Tensor, counts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the share of the counting targets that are padding by how they look: rows end with runs of one token of different lengths,
    which occurs nowhere else, neither in the input. 0 if there are none."""
    last = target[:, -1:]
    run = (target == last).flip(1).long().cumprod(1).flip(1) > 0
    token = last.index_select(0, run.sum(1).argmax(0, keepdim=True))
    run &= last == token
    lengths = run.sum(1)
    is_padded = lengths > 1
    # The first one of a run may be the token that ends the text.
    outside = ((target == token) & ~run).any() | ((tokens == token) & ~run).sum(1).gt(1).any()
    are_fed = ((tokens[:, -1:] == token)[:, 0] | ~is_padded).all()
    are_many = (is_padded.sum() * 2 >= len(target)) & (is_padded.sum() > 1) & (lengths.max() > lengths.min())
    seems = ~outside & are_fed & are_many & (counts | ~run).all()
    padding = (run & is_padded[:, None]).sum() - is_padded.sum()
    return seems * padding / counts.sum().clamp(min=1).double()


class LossTargets:
    """Facts about the losses of one step. Call note() before each backward, hold() at each optimizer's step, and take() at the step's
    end."""

    def __init__(self) -> None:
        # Ids of all parameters of the watched models, or empty, and of those that optimizers hold.
        self.known: Collection[int] = ()
        self._held: set[int] = set()
        # Sizes of parameters that no optimizer is known to train, by id. The parameters are not kept alive.
        self._untrained: dict[int, int] = {}
        self._probabilities: Any = None
        self._calls: list[dict[str, Any]] = []
        self._graph_steps = 0
        self._graph: dict[str, Any] | None = None
        self._shape_steps = self._losses = 0
        self._shapes: dict[str, Any] = {}

    def note(self, loss: torch.Tensor) -> None:
        if loss.grad_fn is None or not hasattr(loss.grad_fn, "register_prehook"):
            return
        self._note_shapes(loss.grad_fn)
        for node in _nodes(loss.grad_fn, _NEAR):
            if len(self._calls) >= _MOST_CALLS:
                return
            if self._probabilities is None and node.name() in OF_PROBABILITIES:
                found = probabilities(node)
                self._probabilities = found if isinstance(found, torch.Tensor) or found else None
            if node.name() in NLL:
                self._note_call(loss.grad_fn, node)

    def begin(self) -> None:
        """Call when another model is trained, whose graphs are other ones."""
        self._graph_steps = self._shape_steps = 0

    def hold(self, optimizer: Any) -> None:
        """Call when a step of `optimizer` begins."""
        if self._shape_steps < _GRAPH_STEPS:
            self._held.update(id(parameter) for group in optimizer.param_groups for parameter in group["params"])

    def take(self) -> dict[str, Any]:
        """Returns the values for the record Training, with one value for each loss call, or a list for several."""
        calls = [call for call in self._calls if self._weigh(call)]
        self._calls = []
        values: dict[str, Any] = {}
        if self._probabilities is not None:
            values["loss_of_probabilities"] = torch.as_tensor(self._probabilities).double()
            self._probabilities = None
        for key, name in (("tokens", "loss_tokens"), ("weight", "token_weight"), ("checksum", "target_checksum"), ("one_class", "one_class")):
            if calls:
                values[name] = calls[0][key] if len(calls) == 1 else [call[key] for call in calls]
        if calls:
            values["guessing_loss"] = torch.tensor(calls[0]["guessing"], dtype=torch.float64)
        if self._losses:
            values.update(self._shapes)
            left = [size for one, size in self._untrained.items() if one not in self._held]
            if self.known:
                values["untrained"] = [torch.tensor(float(number), dtype=torch.float64) for number in (len(left), sum(left))]
            self._shape_steps += 1
            self._losses, self._shapes, self._untrained = 0, {}, {}
        if self._graph is not None:
            values.update(self._graph)
            self._graph_steps += 1
            self._graph = None
        return values

    def _note_shapes(self, root: Any) -> None:
        if self._shape_steps >= _GRAPH_STEPS or self._losses >= _MOST_LOSSES:
            return
        self._losses += 1
        near, nodes, terms = list(_nodes(root, _NEAR)), list(_nodes(root, _MOST_NODES)), terms_of(root)
        read = {"loss_broadcast": loss_broadcast(near), "unreachable_targets": unreachable_targets(near), "moving_target": moving_target(near),
                "undefined_targets": undefined_targets(near),
                "sequence_dims": sequence_dims(nodes), "logits_range": logits_range(near), "pair_targets": pair_targets(near),
                "minimised_likelihood": minimised_likelihood(terms), "inverted_term": inverted_term(terms),
                "stale_casts": stale_casts(nodes), "image_range": image_range(nodes), "pooled_over_batch": pooled_over_batch(nodes),
                "mixed_views": mixed_views(nodes), "norms_of_places": norms_of_places(nodes), "padding_attended": padding_attended(nodes),
                "padding_pooled": padding_pooled(nodes), "positions_of_batch": positions_of_batch(nodes)}
        if self.known:
            # In the first step another optimizer may be about to step: its parameters are not known yet.
            untrained = between_trained(nodes, lambda one: id(one) in self.known or id(one) in self._held, self._shape_steps > 0)
            self._untrained.update((id(one), one.numel()) for one in untrained)
        for name, values in read.items():
            if values:
                known = self._shapes.get(name)
                self._shapes[name] = _worse(known, values) if known and name in _WORSE else known or values
        for name, one in (("dropout_checksum", dropout_masks(nodes, _checksum)), ("regression_checksum", regression_targets(near, _checksum))):
            if one is not None:
                self._shapes.setdefault(name, one)
        if "input_checksum" not in self._shapes:
            checksums = [_checksum(data) for data in data_of(nodes) if not data.is_complex()]
            if checksums and len({one.device for one in checksums}) == 1:
                self._shapes["input_checksum"] = torch.stack(checksums).sum()

    @staticmethod
    def _weigh(call: dict[str, Any]) -> bool:
        """Sets the "weight" of a call. Returns False if its backward did not run or is of another kind."""
        gradient = call.get("gradient")
        if not isinstance(gradient, torch.Tensor):
            return False
        gradient = gradient.detach().float()
        if call["reduction"] == _SUM:
            call["weight"] = gradient
        elif call["reduction"] == _MEAN:
            call["weight"] = gradient / call["tokens"]
        elif gradient.shape == call["counts"].shape:  # Only targets that the program's own mask keeps.
            used = call["counts"] & (gradient != 0)
            call["tokens"] = used.sum().float()
            call["weight"] = (gradient * used).sum() / call["tokens"]
        return "weight" in call

    def _note_call(self, root: Any, node: Any) -> None:
        target, logits = saved(node, "target"), saved(node, "self")
        if target is None or logits is None or logits.dim() < 2:
            return
        counts = target != signed(node._saved_ignore_index)
        call: dict[str, Any] = {"tokens": counts.sum().float(), "counts": counts, "guessing": math.log(max(logits.shape[1], 1)),
                                "reduction": node._saved_reduction, "checksum": _checksum(target), "one_class": _is_one_class(target, counts)}

        def weigh(gradients: Any) -> None:
            call.setdefault("gradient", gradients[0])

        node.register_prehook(weigh)
        self._calls.append(call)
        if self._graph_steps < _GRAPH_STEPS and self._graph is None:
            nodes = list(_nodes(root, _MOST_NODES))
            read = {"target_is_input": self._match(nodes, target, counts), "attention_sees": attention_sees(nodes),
                    "masks_behind": masks_behind(nodes), "repeated_masks": repeated_masks(nodes),
                    "merged_positions": merged_positions(nodes), "softmax_dims": softmax_dims(nodes),
                    "rotary_places": rotary_places(nodes), "sequence_means": sequence_means(nodes),
                    "layers_ahead": layers_ahead(node, target, counts)}
            if node._saved_reduction in (_MEAN, _SUM) and saved(node, "weight") is None:
                read["loss_padding"] = self._padding(nodes, target, counts)
            self._graph = {name: values for name, values in read.items() if values}

    @staticmethod
    def _padding(nodes: list[Any], target: torch.Tensor, counts: torch.Tensor) -> list[Any]:
        """Returns the share of the counting targets whose input is padding next to more padding; the smallest for several inputs. If no
        embedding knows its padding, the share of targets that seem to be padding."""
        found, ends = [], []
        for node in nodes:
            tokens = saved(node, "indices") if node.name() in _EMBEDDINGS else None
            if tokens is None or tokens.dim() != 2 or tokens.device != counts.device:
                continue
            rows, length = tokens.shape
            long = next((n for n in (length, length - 1) if rows * n == counts.numel()), 0)
            if long < 2:
                continue
            padding = node._saved_padding_idx
            if not 0 <= padding < 1 << 63:
                ends.append(_ended(target.reshape(rows, long), counts.reshape(rows, long), tokens[:, :long]))
                continue
            is_padding = tokens == padding
            # A single padding token is not counted, because it may end a text.
            inside = is_padding[:, :-1] & is_padding[:, 1:]
            # The last padding token before a text is not counted, because it predicts the first token.
            is_padding = torch.cat([inside, inside[:, -1:]], 1)
            counted = counts.reshape(rows, long)
            in_loss = is_padding[:, :long] & counted
            # A single one in a row is not counted, because it may be a regular token before the padding.
            in_loss &= in_loss.sum(1, keepdim=True) > 1
            found.append(in_loss.sum() / counted.sum().clamp(min=1).double())
        return [torch.stack(found or ends).min()] if found or ends else []

    @staticmethod
    def _match(nodes: list[Any], target: torch.Tensor, counts: torch.Tensor) -> list[Any]:
        """Returns, for each of SHIFTS, the share of the targets that equal the input shifted by it; the largest for several inputs. Last the
        number of rows if the last target of each is its first token, and its last token is nowhere else followed by it, as in a row that
        repeats itself; else 0."""
        found: list[list[Any]] = []
        for node in nodes:
            if node.name() not in _EMBEDDINGS:
                continue
            tokens = saved(node, "indices")
            if tokens is None or tokens.dim() != 2 or tokens.device != target.device:
                continue
            rows, length = tokens.shape
            # The targets of a row may lack the last position.
            long = next((n for n in (length, length - 1) if rows * n == target.numel()), 0)
            if long <= max(SHIFTS):
                continue
            wanted, counted = target.reshape(rows, long), counts.reshape(rows, long)
            shares = []
            for shift in SHIFTS:
                places = min(long, length - shift)
                same = (wanted[:, :places] == tokens[:, shift:shift + places]) & counted[:, :places]
                shares.append(same.sum().float() / counted[:, :places].sum())
            is_first = (wanted[:, -1] == tokens[:, 0]) & counted[:, -1]
            repeats = ((tokens[:, :-1] == tokens[:, -1:]) & (tokens[:, 1:] == tokens[:, :1])).any(1)
            shares.append((is_first & ~repeats).all().float() * float(rows * (long == length > _FEW)))
            found.append(shares)
        if not found:
            return []
        return [torch.stack([shares[i] for shares in found]).max() for i in range(len(SHIFTS) + 1)]


__all__ = ["LossTargets", "SHIFTS"]
