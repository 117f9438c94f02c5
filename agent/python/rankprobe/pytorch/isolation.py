# SPDX-License-Identifier: Apache-2.0
"""Judgement of each module of a model on the inputs that a reference recorded for it, in one step, so that errors do not add up.

    with rankprobe.isolate(model, "reference/step0/rank0") as report:
        model(batch)
    print(report)

A hook before each module replaces its inputs by the recorded ones, and a hook after it compares its outputs and returns the
recorded ones. So the own code of a module begins at recorded values (its inputs, and the outputs of its children) and ends in
values that are compared (its outputs, and the inputs of its children). Its backward runs immediately, from the recorded gradients
of its outputs to those of its inputs. After the step, parameters, gradients, buffers and random state are restored, and no hook is
left.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import threading
from typing import Any, Callable, Mapping, Optional

import torch

from rankprobe.pytorch import _hidden_hooks
from rankprobe.pytorch import _isolation_numbers as numbers
from rankprobe.pytorch._isolation_frame import UNKNOWN, Frame, Gradient, Leaf, Parameter, gradient_of
from rankprobe._isolation_reference import (Call, IsolationError, Reference, Unreadable, differentiable, find_rank,
                                                    gradients_by_path, is_tensor, leaves)
from rankprobe._isolation_report import ERROR, NOT_JUDGED, Report, Row, source_of
from rankprobe.pytorch._isolation_state import SavedState, eager, give_parameters
from rankprobe.pytorch._isolation_totals import parameter_rows
from rankprobe.pytorch._isolation_values import Arguments, as_outputs, tensors, with_tensors
from rankprobe.pytorch._modules import named_targets

# The oldest PyTorch whose autograd can begin at an edge of the graph.
_OLDEST = (2, 5)


def _same_kind(own: torch.Tensor, record: dict[str, Any]) -> bool:
    """Returns whether both have real floating-point, both complex, or both integer or boolean elements."""
    dtype = getattr(torch, record["dtype"].removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        return False
    fraction = own.is_floating_point() or own.is_complex()
    return fraction == (dtype.is_floating_point or dtype.is_complex) and own.is_complex() == dtype.is_complex


def reference_paths(modules: list[tuple[str, str]], layer_mapping: Any, cell_mapping: Any, force: bool) -> list[str]:
    """Returns the paths of these modules (path, class) in the reference, by the mappings of `compare` (-lm, -cm). Raises
    IsolationError for a bad mapping."""
    if layer_mapping is None and cell_mapping is None:
        return [path for path, _ in modules]
    from rankprobe import _analysis

    cells = list(cell_mapping.items()) if isinstance(cell_mapping, Mapping) else "" if cell_mapping is None else os.fspath(cell_mapping)
    layers = None if layer_mapping is None else os.fspath(layer_mapping)
    try:
        return list(_analysis.module_names(modules, layers, cells, force))
    except ValueError as fault:
        raise IsolationError(str(fault)) from None


class Isolation:
    """Context manager around one step of `model` (or models); yields the Report. Only the thread that enters it is judged. For the
    options see rankprobe.isolate(). Raises IsolationError, a ValueError, for bad input and if it is entered twice."""

    def __init__(self, model: Any, reference: str | os.PathLike[str], *, step: Optional[int] = None, rank: Optional[int] = None,
                 tolerance: Optional[float] = None, layer_mapping: Any = None, cell_mapping: Any = None, force: bool = False) -> None:
        if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < _OLDEST:
            raise IsolationError(f"isolate needs PyTorch 2.5 or later; this is {torch.__version__}")
        models = list(model) if isinstance(model, (list, tuple)) else [model]
        if not models or not all(isinstance(one, torch.nn.Module) for one in models):
            raise IsolationError(f"model: expected a torch.nn.Module or a list of them, not {type(model).__name__}")
        if tolerance is not None and not (isinstance(tolerance, (int, float)) and tolerance >= 0):
            raise IsolationError(f"tolerance: expected a number that is not negative, not {tolerance!r}")
        self._models = models
        self._reference = Reference(find_rank(os.fspath(reference), step, rank), force)
        found = list(named_targets(model))
        names = [(path, type(module).__name__) for path, module in found]
        paths = reference_paths(names, layer_mapping, cell_mapping, force)
        if not any(known in self._reference.calls for known in paths):
            # One side may be wrapped completely (DistributedDataParallel).
            paths = next((other for other in ([f"module.{known}" for known in paths], [known.removeprefix("module.") for known in paths])
                          if any(known in self._reference.calls for known in other)), paths)
        # (name, path in the reference, module)
        self._targets = [(f"Module.{path}.{cls}", known, module) for (path, cls), known, (_, module) in zip(names, paths, found)]
        if not any(known in self._reference.calls for _, known, _ in self._targets):
            raise IsolationError(f"{self._reference.directory}: has none of the model's {len(self._targets)} modules (it has "
                                 f"{', '.join(list(self._reference.calls)[:3])}; the model {', '.join(path for path, _ in names[:3])}): "
                                 "a layer or cell mapping says which is which")
        self._fixed = tolerance
        self.report = Report(self._reference.directory)
        self._stack: list[Optional[Frame]] = []
        # State to restore after a module: gradient mode, hooks on saved tensors.
        self._modes: list[contextlib.ExitStack] = []
        self._counts: dict[int, int] = {}
        self._parameters: dict[int, Parameter] = {}
        self._generator = torch.Generator().manual_seed(0)
        self._open = contextlib.ExitStack()
        self._thread = 0
        self._random: tuple[torch.Tensor, ...] = ()
        self._without: dict[str, str] = {}
        self._skipped: dict[tuple[str, str], str] = {}
        # Rows of a backward that differs, with weak references that live as long as the graph of that call.
        self._kept: list[tuple[Row, list[Any]]] = []
        # Called when the forward of a model has ended.
        self.on_forward_end: Callable[[], None] = lambda: None

    def __enter__(self) -> Report:
        if self._thread:
            raise IsolationError("this isolation has already run its step; create another one")
        self._thread = threading.get_ident()
        try:
            self._enter()
        except BaseException:
            self._open.close()
            raise
        return self.report

    def _enter(self) -> None:
        self._state = SavedState(self._models)
        self._open.callback(self._state.put_back)
        self._open.enter_context(eager(self._models))
        for model in self._models:
            if isinstance(model, torch.nn.parallel.DistributedDataParallel):  # Gradients do not reach its parameters in the cut graph.
                self._open.enter_context(model.no_sync())
        torch.clear_autocast_cache()
        notes, self._without = give_parameters(self._state, self._reference, self._targets)
        self.report.notes.extend(notes)
        self._state.keep()
        self._parameters = {id(p): Parameter() for model in self._models for p in model.parameters()}
        _hidden_hooks.hold()
        self._open.callback(_hidden_hooks.release)
        for index, model in enumerate(self._models):
            self._hook(model, "Module" if len(self._models) == 1 else f"Module.{index}", None)
        for name, path, module in self._targets:
            self._hook(module, name, path)
        self._random = self._state.random()

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        self._open.close()
        if kind is not None and not issubclass(kind, SystemExit):
            self.report.notes.append(f"the step ended with {kind.__name__}: {' '.join(str(value).split())[:200]}")
        self._finish()

    @property
    def reference(self) -> str:
        """The directory of the reference."""
        return self._reference.directory

    def begin_within(self, model: torch.nn.Module) -> None:
        """Enters from a pre-forward hook of one of the models, and calls its own hook, which PyTorch calls only from the next call on."""
        self.__enter__()
        index = next(i for i, one in enumerate(self._models) if one is model)
        self._before(model, "Module" if len(self._models) == 1 else f"Module.{index}", None, Arguments(model), (), {})

    def complete(self) -> bool:
        """Returns whether every recorded call of the model's modules has been seen."""
        return not self._stack and all(self._counts.get(id(module), 0) >= len(self._reference.calls.get(path, ()))
                                       for _, path, module in self._targets)

    def _hook(self, module: torch.nn.Module, name: str, path: Optional[str]) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            self._skipped[name, "forward"] = "it is compiled by TorchScript"
            return
        arguments = Arguments(module)

        def before(_: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._before(module, name, path, arguments, args, kwargs)

        def behind(_: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            return self._behind(module, name, output)

        for handle in (_hidden_hooks.HookHandle("_forward_pre_hooks", _hidden_hooks.marked(before), kwargs=True),
                       _hidden_hooks.HookHandle("_forward_hooks", _hidden_hooks.marked(behind), kwargs=True, always_call=True)):
            self._open.callback(handle.put(module).remove)

    # --- before a module

    def _passes_by(self) -> bool:
        """Returns whether the call is in another thread or is a recomputation in a backward, and is not judged."""
        return threading.get_ident() != self._thread or torch._C._current_graph_task_id() != -1

    def _before(self, module: torch.nn.Module, name: str, path: Optional[str], arguments: Arguments, args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> Any:
        if self._passes_by():
            self._skipped.setdefault((name, "forward"), "also called in another thread or by a recomputation; such calls are not judged")
            return None
        self._drawn()
        number = self._counts.get(id(module), 0)
        self._counts[id(module)] = number + 1
        call = None if path is None else self._reference.calls.get(path, {}).get(number)
        self._modes.append(contextlib.ExitStack())
        if path is not None and call is None:
            self._stack.append(None)
            known = len(self._reference.calls.get(path, ()))
            self._skipped[name, f"forward.{number}"] = (
                f"the reference has {known} calls of it, this program more" if known else "the reference has no such module")
            return None
        frame = Frame(module, name, number, call, self._reference, self._fixed, self._parameters, self._generator)
        changed = None
        try:
            if call is not None:
                changed = self._exchange(frame, call, arguments, args, kwargs)
        except Exception as fault:  # noqa: BLE001 - a fault of one module must not affect the others
            frame.reason = f"its inputs could not be exchanged ({type(fault).__name__}: {' '.join(str(fault).split())[:160]})"
        self._stack.append(frame)
        return changed

    def _around(self) -> Optional[Frame]:
        """Returns the innermost call that is judged; modules that were not recorded are part of the enclosing one."""
        return next((frame for frame in reversed(self._stack) if frame is not None), None)

    def _enable_gradients(self, frame: Frame, call: Call) -> None:
        if call.backward is None:
            return
        if torch.is_inference_mode_enabled():
            frame.backward_reason = "it runs in inference mode"
            return
        self._modes[-1].callback(torch._C._set_grad_enabled, torch.is_grad_enabled())
        torch._C._set_grad_enabled(True)
        hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if hooks is None or hooks(True) is not None:  # Hooks of activation checkpointing would compute the module again.
            self._modes[-1].enter_context(torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach(), lambda x: x))

    def _exchange(self, frame: Frame, call: Call, arguments: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around = self._around()
        given = [*tensors(args, "input"), *tensors(kwargs, "kwargs")]
        recorded = {arguments.name(place): (place, record) for root, section in (("input", "input_args"), ("kwargs", "input_kwargs"))
                    for place, record in leaves(call.forward.get(section), root)}
        positional = call.forward.get("input_args")
        gradients = {} if call.backward is None else gradients_by_path(
            differentiable(positional, "input"), [place for place, _ in leaves(positional, "input")], call.backward.get("output"))
        if frame.name in self._without:
            frame.reason = self._without[frame.name]
        instead: dict[str, torch.Tensor] = {}
        places: dict[int, list[str]] = {}
        first: dict[int, torch.Tensor] = {}
        parents_mode = torch.is_grad_enabled()
        values: list[tuple[str, str, torch.Tensor, torch.Tensor, bool]] = []
        for place, tensor in given:
            where, record = recorded.get(arguments.name(place), (place, None))
            if not is_tensor(record):
                continue
            if list(tensor.shape) != record["shape"]:
                frame.reason = frame.reason or f"{where} has shape {list(tensor.shape)}, the reference's {record['shape']}"
            elif not _same_kind(tensor, record):
                frame.others.append(tensor)  # A mask of another kind is not replaced.
            else:
                try:
                    value = self._reference.load(record)
                except Unreadable as reason:
                    frame.reason = frame.reason or f"{where} was not recorded: {reason}"
                    continue
                frame.saw(value)
                if id(tensor) not in places and around is not None:
                    self._given(around, frame, where, tensor, value)
                places.setdefault(id(tensor), []).append(where)
                first[id(tensor)] = tensor
                values.append((place, where, tensor, value, bool(record.get("requires_grad"))))
        if around is not None and parents_mode:
            for key, tensor in first.items():
                around.ends_in(tensor, self._sum(gradients, places[key], call))
            for _, tensor in given:
                if id(tensor) not in first:
                    around.ends_in(tensor, UNKNOWN)
        self._enable_gradients(frame, call)
        made: dict[int, torch.Tensor] = {}
        for place, where, tensor, value, wants in values:
            if id(tensor) not in made:
                leaf = numbers.put_into(value, tensor.dtype, tensor.device)
                wants = wants and call.backward is not None and not frame.backward_reason and leaf.is_floating_point()
                if wants:
                    frame.leaves.append(Leaf(leaf.requires_grad_(), f"gradient of {where}", self._sum(gradients, places[id(tensor)], call)))
                    leaf = leaf.clone()  # In-place operations must not change a leaf.
                else:
                    frame.others.append(leaf)
                made[id(tensor)] = leaf
            instead[place] = made[id(tensor)]
        return with_tensors(args, "input", instead), with_tensors(kwargs, "kwargs", instead)

    def _sum(self, gradients: dict[str, Any], places: list[str], call: Call) -> Gradient:
        if call.backward is None or any(place not in gradients for place in places):
            return UNKNOWN
        return gradient_of(self._reference, [gradients[place] for place in places])

    def _given(self, around: Frame, frame: Frame, where: str, own: torch.Tensor, recorded: torch.Tensor) -> None:
        """Compares an input that the own code of the enclosing module has computed."""
        around.has_children = True
        first = around.call is None and not around.leaves
        same = around.compare(f"{where} of {frame.name}.forward.{frame.number}", own, recorded)
        if first and not same:
            around.reason = (f"{where} of {frame.name} differs from the reference: the batch, or code before the first module "
                             "(neither was recorded)")

    # --- after a module

    def _behind(self, module: torch.nn.Module, name: str, output: Any) -> Any:
        if self._passes_by() or not self._stack:
            return None
        self._drawn()
        frame = self._stack.pop()
        modes = self._modes.pop()
        if output is None and sys.exc_info()[0] is not None:
            modes.close()
            if frame is not None:
                self._skipped[name, f"forward.{frame.number}"] = f"it raised {sys.exc_info()[0].__name__}"  # type: ignore[union-attr]
            return None
        changed = None
        if frame is not None:
            try:
                changed = self._judge(frame, output, modes)
            except Exception as fault:  # noqa: BLE001 - a fault of one module must not affect the others
                frame.reason = frame.reason or f"{type(fault).__name__}: {' '.join(str(fault).split())[:160]}"
            rows = frame.rows(source_of(frame.module))
            self.report.rows.extend(rows)
            self._kept.extend((row, frame.watched()) for row in rows
                              if row.direction == "backward" and row.verdict == ERROR and frame.call is not None)
        modes.close()
        if frame is not None and frame.call is None:
            self.on_forward_end()
        return changed

    def _judge(self, frame: Frame, output: Any, modes: contextlib.ExitStack) -> Any:
        own = list(tensors(as_outputs(output), "output"))
        if frame.call is None:
            for _, tensor in own:
                frame.ends_in(tensor, UNKNOWN)
            self._backward(frame)
            return None
        instead: dict[str, torch.Tensor] = {}
        handed: list[Leaf] = []
        for place, tensor, value, gradient in self._recorded_outputs(frame, own):
            frame.compare(place, tensor, value)
            if (around := self._around()) is not None:
                around.saw(value)
            if gradient.known and gradient.value is not None and not tensor.requires_grad and not frame.backward_reason:
                if any(leaf.tensor.requires_grad for leaf in frame.leaves):
                    frame.wrong("backward", place, "it requires no gradient, the reference's has one")
            frame.ends_in(tensor, gradient)
            instead[place] = numbers.put_into(value, tensor.dtype, tensor.device)
            handed.append(Leaf(instead[place], f"gradient of {place} of {frame.name}.forward.{frame.number}", gradient))
        self._backward(frame)
        modes.close()
        around = self._around()
        for (place, leaf), known in zip(list(instead.items()), handed):
            if around is not None:
                around.has_children = True
            if torch.is_grad_enabled() and leaf.is_floating_point() and (known.gradient.value is not None or not known.gradient.known):
                if around is not None:
                    around.leaves.append(known)
                instead[place] = leaf.requires_grad_().clone()
            elif around is not None:
                around.others.append(leaf)
        made = with_tensors(as_outputs(output), "output", instead)
        return made if isinstance(output, (list, tuple)) else made[0]

    def _recorded_outputs(self, frame: Frame, own: list[tuple[str, torch.Tensor]]) -> Any:
        """Yields (place, own tensor, recorded value, recorded gradient) of the outputs that can be compared."""
        assert frame.call is not None
        record, backward = frame.call.forward.get("output"), frame.call.backward
        everything = {place: item for place, item in leaves(record, "output") if is_tensor(item)}
        names = differentiable(record, "output")
        gradients = {} if backward is None else gradients_by_path(names, list(everything), backward.get("input"))
        by_order = set(everything) != {place for place, _ in own} and len(everything) == len(own)
        for index, (place, tensor) in enumerate(own):
            where = list(everything)[index] if by_order else place
            item = everything.get(where)
            if item is None:
                frame.ends_in(tensor, UNKNOWN)
            elif list(tensor.shape) != item["shape"] or not _same_kind(tensor, item):
                frame.reason = frame.reason or (f"{place} is {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}, the "
                                                f"reference's {item['dtype'].removeprefix('torch.')}{item['shape']}")
                frame.ends_in(tensor, UNKNOWN)
            else:
                try:
                    value = self._reference.load(item)
                except Unreadable as reason:
                    frame.reason = frame.reason or f"{place} was not recorded: {reason}"
                    frame.ends_in(tensor, UNKNOWN)
                    continue
                known = gradient_of(self._reference, [gradients[where]]) if where in gradients else UNKNOWN
                yield place, tensor, value, known

    def _backward(self, frame: Frame) -> None:
        try:
            if not frame.reason and not frame.backward_reason:
                frame.run_backward()
                return
        except Exception as fault:  # noqa: BLE001 - a fault of one module must not affect the others
            frame.backward_reason = f"its backward raised {type(fault).__name__}: {' '.join(str(fault).split())[:160]}"
        for parameter in frame.module._parameters.values():
            if parameter is not None and id(parameter) in self._parameters:
                self._parameters[id(parameter)].reason = f"{frame.name} was not judged"

    def _drawn(self) -> None:
        """Marks the running module as not judged if the random state has changed, which means that it drew random numbers."""
        now = self._state.random()
        moved = len(now) != len(self._random) or any(not torch.equal(a, b) for a, b in zip(now, self._random))
        self._random = now
        around = self._around()
        if moved and around is not None and not around.reason:
            p = getattr(around.module, "p", None)
            what = f" (dropout with p={p} in training mode)" if isinstance(p, float) and around.module.training else ""
            around.reason = f"it draws random numbers{what}, whose state was not recorded"

    # --- the report

    def _finish(self) -> None:
        rows = self.report.rows
        if self._kept:
            gc.collect()
        for row, watched in self._kept:
            if any(one() is not None for one in watched):  # For example a loss for balancing experts.
                row.verdict, row.reason = NOT_JUDGED, "it stores a value itself, and the gradient of that value was not recorded"
        sources = {name: source_of(module) for name, _, module in self._targets}
        rows.extend(parameter_rows(self._reference, self._targets, self._parameters, self._fixed, self._without, sources, list(rows),
                                   self.report.notes))
        for (name, direction), reason in self._skipped.items():
            rows.append(Row(f"{name}.{direction}", name, direction.partition(".")[0], NOT_JUDGED, reason=reason,
                            source=sources.get(name, "")))
        known = {path for _, path, _ in self._targets}
        for path, calls in self._reference.calls.items():
            if path not in known:
                rows.append(Row(calls[min(calls)].name, f"Module.{path}", "forward", NOT_JUDGED, reason="the model has no such module"))
        for name, path, module in self._targets:
            seen, there = self._counts.get(id(module), 0), len(self._reference.calls.get(path, ()))
            if seen < there:
                reason = f"called {seen} times, {there} times in the reference" if seen else "this program did not call it in the step"
                rows.append(Row(f"{name}.forward.{seen}", name, "forward", NOT_JUDGED, reason=reason, source=sources[name]))
        self.report.finished = True


__all__ = ["Isolation", "IsolationError", "Report"]
