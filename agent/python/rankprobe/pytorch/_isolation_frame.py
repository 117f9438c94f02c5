# SPDX-License-Identifier: Apache-2.0
"""Own code of one call of a module: from recorded values to values that are compared, forward and backward."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import weakref
from typing import Any, Callable, Iterable, NamedTuple, Optional

import torch

from rankprobe.pytorch import _isolation_numbers as numbers
from rankprobe._isolation_reference import Call, Reference, Unreadable, is_tensor
from rankprobe._isolation_report import ERROR, NOT_JUDGED, PASS, Row

# float16 gradients are scaled so that the largest is about this, because small ones underflow, and the results scaled back.
_HALF_SIZE = 0.125
_USUAL = 4
# Nodes that move or negate values and do not round.
_MOVES = re.compile(r"(torch::autograd::)?(AccumulateGrad|Clone|Copy|ToCopy|(Unsafe)?View|Reshape|Alias|T|Transpose|Permute|Expand|Unbind|"
                    r"Select|Slice|Split|Squeeze|Unsqueeze|Cat|Stack|Index|Chunk|Narrow|AsStrided|Neg|Contiguous)(Backward|Alias|WithSizes|\d|$)")


class Gradient(NamedTuple):
    """A recorded gradient. value: None if the reference had none there (unused). known: False if it was not recorded."""

    known: bool
    value: Optional[torch.Tensor]


UNKNOWN = Gradient(False, None)


def gradient_of(reference: Reference, records: Iterable[Any]) -> Gradient:
    """Returns the sum of these records, which belong to one tensor in several places."""
    value: Optional[torch.Tensor] = None
    for record in records:
        if record is None:
            continue
        if is_tensor(record):
            try:
                part = reference.load(record)
            except Unreadable:
                return UNKNOWN
            value = part if value is None else value + part
        elif "the same tensor as an input before it" not in json.dumps(record, default=str):
            return UNKNOWN
    return Gradient(True, value)


@dataclasses.dataclass
class Leaf:
    """A beginning of own code: a recorded tensor, with the gradient that the reference had there."""

    tensor: torch.Tensor
    where: str
    gradient: Gradient


@dataclasses.dataclass
class Parameter:
    """The gradient of one parameter in this step, from the calls that used it."""

    total: Optional[torch.Tensor] = None
    last: Optional[torch.Tensor] = None
    # Norm of the summed gradients, number of rows in the sum, and norm of the effect of rounding.
    summed: float = 0.0
    rows: int = 1
    noise: float = 0.0
    operands: list[int] = dataclasses.field(default_factory=list)
    rounding: float = 0.0
    users: list[str] = dataclasses.field(default_factory=list)
    # Why it cannot be judged; "" if it can.
    reason: str = ""


class _Token:
    """An object that supports weak references."""


class _Found(NamedTuple):
    error: float
    tolerance: float
    where: str
    reason: str


def _edge(tensor: torch.Tensor) -> Any:
    """Returns the tensor's current edge in the graph; an in-place change later moves the tensor to another edge."""
    return torch.autograd.graph.get_gradient_edge(tensor)


def _variables(edges: Iterable[Any]) -> dict[int, torch.Tensor]:
    """Returns the leaf tensors behind edges of the graph, by id."""
    found: dict[int, torch.Tensor] = {}
    left, seen = [edge.node for edge in edges], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
        left.extend(following for following, _ in node.next_functions)
    return found


def _operations(edges: Iterable[Any]) -> int:
    """Returns the largest number of rounding nodes on a path behind edges of the graph."""
    length: dict[Any, int] = {}
    left = [edge.node for edge in edges if edge.node is not None]
    roots = list(left)
    while left:
        node = left[-1]
        following = [other for other, _ in node.next_functions if other is not None]
        missing = [other for other in following if other not in length]
        if node not in length and missing:
            left.extend(missing)
            continue
        left.pop()
        length[node] = (not _MOVES.match(node.name())) + max((length[other] for other in following), default=0)
    return max((length[root] for root in roots), default=0)


class Frame:
    """A call in progress. call: its record; None for a model itself, which dumps do not contain."""

    def __init__(self, module: torch.nn.Module, name: str, number: int, call: Optional[Call], reference: Reference,
                 fixed: Optional[float], parameters: dict[int, Parameter], generator: torch.Generator) -> None:
        self.module, self.name, self.number, self.call = module, name, number, call
        self.leaves: list[Leaf] = []
        # Operands without a gradient.
        self.others: list[torch.Tensor] = []
        # Why the call, or its backward, is not judged.
        self.reason = self.backward_reason = ""
        self.has_children = False
        self._reference, self._fixed, self._parameters, self._generator = reference, fixed, parameters, generator
        # Edges with their incoming gradient (converted, recorded), and edges whose gradient is not known.
        self._ends: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
        self._unknown: list[Any] = []
        self._found: dict[str, list[_Found]] = {"forward": [], "backward": []}
        self._recorded_rounding = 0.0
        self._own = [p for p in module._parameters.values() if p is not None]

    def saw(self, recorded: torch.Tensor) -> None:
        """Notes the rounding of a recorded value."""
        self._recorded_rounding = max(self._recorded_rounding, numbers.epsilon(recorded.dtype))

    # --- where own code ends

    def compare(self, where: str, own: torch.Tensor, recorded: torch.Tensor) -> bool:
        """Compares a value of own code with the recorded one. Returns whether they agree."""
        found = numbers.difference(own, recorded)
        self.saw(recorded)
        rounding = self._rounding([own])
        tolerance = self._tolerance(own, rounding)
        if found.error > tolerance and self._fixed is None and own.requires_grad:
            tolerance *= self._in_a_row([_edge(own)])
            tolerance = self._measured(found, tolerance, self._forward_noise(own, rounding))
        self._found["forward"].append(_Found(found.error, tolerance, where, ""))
        return found.error <= tolerance

    def ends_in(self, tensor: torch.Tensor, gradient: Gradient) -> None:
        """Notes a value that leaves own code, with the gradient that it received in the reference."""
        if not tensor.requires_grad:
            return
        if not gradient.known:
            self._unknown.append(_edge(tensor))
        elif gradient.value is not None:
            self.saw(gradient.value)
            self._ends.append((_edge(tensor), numbers.put_into(gradient.value, tensor.dtype, tensor.device), gradient.value))

    def wrong(self, direction: str, where: str, reason: str) -> None:
        self._found[direction].append(_Found(math.inf, 0.0, where, reason))

    # --- backward

    def run_backward(self) -> None:
        """Runs the backward of own code, from the recorded gradients of its outputs to those of its inputs and parameters."""
        edges = [edge for edge, _, _ in self._ends]
        ours = {id(leaf.tensor): leaf for leaf in self.leaves if leaf.tensor.requires_grad}
        reached = _variables(edges)
        tainted = _variables(self._unknown)
        for key in tainted:
            if key in self._parameters:
                self._parameters[key].reason = f"the gradient behind {self.name} was not recorded"
        leaves = [leaf for key, leaf in ours.items() if key not in tainted and leaf.gradient.known]
        users = [variable for key, variable in reached.items() if key in self._parameters and key not in tainted]
        wanted = [leaf.tensor for leaf in leaves] + users
        if not wanted:
            return
        rounding = self._rounding([grad for _, grad, _ in self._ends])
        scale = self._scale()
        grads = self._grads(edges, [(recorded * scale).to(grad) for _, grad, recorded in self._ends], wanted)
        more = self._in_a_row(edges)
        noise = self._noise_once(edges, wanted, grads, rounding, scale)
        for index, leaf in enumerate(leaves):
            own = grads[index]
            self._compare_gradient(leaf, None if own is None else own.detach().cpu().double() / scale, rounding, more,
                                   lambda index=index: noise()[index])  # type: ignore[misc]
        rows = max((value.numel() // max(1, value.shape[-1]) if value.dim() else 1 for value in self._operands()), default=1)
        behind = [recorded for _, _, recorded in self._ends]
        for index, variable in enumerate(users, len(leaves)):
            part = grads[index]
            if part is None:
                continue
            known, value = self._parameters[id(variable)], part.detach().cpu().double() / scale
            known.last = value
            known.total = value if known.total is None else known.total + value
            known.summed = math.hypot(known.summed, *(float(b.double().norm()) for b in behind))
            known.rows, known.rounding = max(known.rows, rows), max(known.rounding, rounding * more)
            known.noise = math.hypot(known.noise, noise()[index]) if rounding > numbers.epsilon(torch.float32) else known.noise
            known.operands = [value.numel() for value in self._operands()]
            known.users.append(self.name)

    def _scale(self) -> float:
        if not any(grad.dtype == torch.float16 for _, grad, _ in self._ends):
            return 1.0
        largest = max(float(recorded.abs().max()) if recorded.numel() else 0.0 for _, _, recorded in self._ends)
        return 2.0 ** math.floor(math.log2(_HALF_SIZE / largest)) if 0 < largest < math.inf else 1.0

    def _grads(self, edges: list[Any], behind: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[Optional[torch.Tensor]]:
        if not edges:
            return [None] * len(wanted)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return list(torch.autograd.grad(edges, wanted, behind, retain_graph=True, allow_unused=True))

    def _noise_once(self, edges: list[Any], wanted: list[torch.Tensor], grads: list[Optional[torch.Tensor]], rounding: float,
                    scale: float) -> Callable[[], list[float]]:
        """Returns a function that measures, once, the norm of each gradient's change if the incoming gradients are rounded differently."""
        measured: list[float] = []

        def noise() -> list[float]:
            if not measured:
                behind = []
                for _, grad, recorded in self._ends:
                    moved = torch.rand(recorded.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
                    behind.append((recorded.double() * scale * (1 + rounding * moved)).to(grad))
                for other, first in zip(self._grads(edges, behind, wanted), grads):
                    apart = 0.0 if other is None or first is None else float((other.double() - first.double()).norm()) / scale
                    measured.append(apart if math.isfinite(apart) else 0.0)
            return measured

        return noise

    def _compare_gradient(self, leaf: Leaf, own: Optional[torch.Tensor], rounding: float, more: float, noise: Callable[[], float]) -> None:
        recorded = leaf.gradient.value
        if recorded is None:
            if own is not None and bool((own != 0).any()):
                self.wrong("backward", leaf.where, "the reference had no gradient there")
            return
        if own is None:
            if bool((recorded != 0).any()):
                self.wrong("backward", leaf.where, "it receives no gradient")
            return
        found = numbers.difference(own, recorded)
        tolerance = self._tolerance(own, rounding)
        if found.error > tolerance and self._fixed is None:
            tolerance = self._measured(found, tolerance * more, noise())
        self._found["backward"].append(_Found(found.error, tolerance, leaf.where, ""))

    # --- tolerances

    def _rounding(self, values: list[torch.Tensor]) -> float:
        """Returns the combined unit roundoff of this program and of the reference, each by its coarsest value."""
        return math.hypot(numbers.epsilon_of([*values, *self._operands()]), self._recorded_rounding)

    def _operands(self) -> list[torch.Tensor]:
        return self._inputs() + self._own

    def _tolerance(self, own: torch.Tensor, rounding: float) -> float:
        if self._fixed is not None:
            return self._fixed
        if not rounding or not (own.is_floating_point() or own.is_complex()):
            return 0.0
        sizes = sorted((value.numel() for value in self._operands()), reverse=True)
        # The products in own code between children are not known; the measured effect of rounding includes them.
        return numbers.auto_tolerance(rounding, own.numel(), sizes[:1] if self.has_children else sizes)

    def _in_a_row(self, edges: list[Any]) -> float:
        """Returns the factor for the number of operations in sequence. The usual tolerance covers _USUAL of them; the rounding of more
        grows with the square root."""
        count = _operations(edges)
        if isinstance(self.module, torch.nn.RNNBase):  # One node covers all steps of a sequence.
            count += 2 * self.module.num_layers * max((max(value.shape[:-1], default=1) for value in self._inputs()), default=1)
        return math.sqrt(max(1.0, count / _USUAL))

    def _inputs(self) -> list[torch.Tensor]:
        return [leaf.tensor for leaf in self.leaves] + self.others

    @staticmethod
    def _measured(found: numbers.Difference, tolerance: float, noise: float) -> float:
        if found.size == 0:
            return math.inf if found.absolute <= numbers.NOISE * noise else tolerance
        return max(tolerance, numbers.NOISE * noise / found.size)

    def _forward_noise(self, own: torch.Tensor, rounding: float) -> float:
        """Returns the norm of the effect of input rounding on `own`: with random signs v, its expected square is the sum over
        elements x of (rounding * x * (J^T v))^2."""
        edge = _edge(own)
        ours = {id(leaf.tensor) for leaf in self.leaves}
        wanted = [variable for key, variable in _variables([edge]).items() if key in ours or key in self._parameters]
        if not wanted:
            return 0.0
        grads = self._grads([edge], [numbers.signs(own, self._generator)], wanted)
        squares = sum(float((value.detach().double() * grad.double()).square().sum())
                      for value, grad in zip(wanted, grads) if grad is not None)
        return rounding * math.sqrt(squares) if math.isfinite(squares) else 0.0

    # --- the report

    def watched(self) -> list[Any]:
        """Returns weak references to objects that live as long as the graph of own code is referenced."""
        out = []
        for leaf in self.leaves:
            if leaf.tensor.requires_grad:
                token = _Token()
                leaf.tensor.register_hook(lambda _, token=token: None)
                out.append(weakref.ref(token))
        return out

    def rows(self, source: str) -> list[Row]:
        out = []
        for direction in ("forward", "backward"):
            found = self._found[direction]
            name = f"{self.name}.{direction}.{self.number}"
            if direction == "backward" and self.call is not None and self.call.backward is None:
                continue
            if not found and self._nothing_asked(direction):
                continue
            reason = self.reason or (self.backward_reason if direction == "backward" else "")
            if not reason and not found:
                reason = ("its inputs take no gradient" if direction == "backward" and not self._unknown else
                          "the gradients behind it were not recorded" if direction == "backward" else "it returned no recorded tensor")
            if reason:
                out.append(Row(name, self.name, direction, NOT_JUDGED, reason=reason, source=source))
                continue
            worst = max(found, key=lambda item: _beyond(item.error, item.tolerance))
            verdict = ERROR if worst.error > worst.tolerance else PASS
            why = worst.reason or ("in the model's own code, outside of its modules" if self.call is None and verdict == ERROR else "")
            out.append(Row(name, self.name, direction, verdict, worst.error, worst.tolerance, worst.where, why, source))
        return out

    def _nothing_asked(self, direction: str) -> bool:
        """Returns whether no row is needed: for a model itself, or a backward without input gradients in the reference."""
        if self.call is None:
            return True
        backward = self.call.backward or {}
        return direction == "backward" and not self.has_children and not any(is_tensor(one) for one in backward.get("output") or ())


def _beyond(error: float, tolerance: float) -> float:
    return error / tolerance if tolerance else math.inf if error else 0.0


__all__ = ["UNKNOWN", "Frame", "Gradient", "Leaf", "Parameter", "gradient_of"]
