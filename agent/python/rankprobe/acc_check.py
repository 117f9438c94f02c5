# SPDX-License-Identifier: Apache-2.0
"""Offline pre-check: runs the API calls of an L1 or mix dump again, in their own precision and in a higher one.

    python -m rankprobe.acc_check -api_info step0/rank0/dump.json -o OUT [-csv_path RESULT.csv to go on]

Inputs come from the .pt files of a tensor dump, else they are drawn between the recorded Min and Max. On a machine
without an accelerator the check is that of the CPU kernel in float16, bfloat16 or float32 against float64.
Writes accuracy_checking_result_{time}.csv (a line a call) and accuracy_checking_details_{time}.csv (a line an output).
-config FILE reads white_list, black_list and error_data_path from the acc_check section of a config.json; what is given
on the command line has priority. Files that others can change, of other users, and links are refused without --force.
--compare DEVICE_details.csv REFERENCE_details.csv weighs what it found on two machines against each other (acc_compare.py).
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import math
import os
import pathlib
import re
import sys
import time
from typing import Any, Callable, Iterator

import torch

from rankprobe import acc_compare, acc_standards
from rankprobe._inputs import Refused, open_input, read_dump, show

RESULT_COLUMNS = ["API Name", "Forward Test Success", "Backward Test Success", "Message"]
DETAIL_COLUMNS = ["API Name", "Dtype", "Reference Dtype", "Shape", "Standard", "Cosine", "Max Abs Err", "Max Rel Err",
                  "Mean Rel Err", "RMSE", "Small Value Err Ratio", "Rel Err Ratio", "Inf/Nan Err Ratio", "Err Balance",
                  "Max ULP", *[acc_compare.BENCHMARK[name] for name in ("small_share", "balance")], "Status", "Message"]
# By dtype: largest small value, absolute bound for small values, relative bound, relative bound of operators that accumulate sums.
BOUNDS = {torch.float16: (2**-10, 2**-16, 2**-10, 2**-8), torch.bfloat16: (2**-10, 1e-16, 2**-8, 2**-7),
          torch.float32: (2**-20, 2**-30, 2**-20, 2**-11)}
ULP = {torch.float16: (10, -14), torch.bfloat16: (7, -126), torch.float32: (23, -126)}
ACCUMULATING = re.compile(
    r"(linear|matmul|mm|addm|baddbmm|bilinear|conv|sum|mean|norm|softmax|pool|einsum|dot|attention|cumsum|var|std|"
    r"entropy|loss|lerp|prod|embedding|interpolate|gelu|silu|sigmoid|tanh|exp|log|pow|erf|sqrt|div|reciprocal|add|mul|sub)")
RANDOM = re.compile(r"(dropout|rand|bernoulli|multinomial|normal_|uniform_|exponential_|geometric_|log_normal|empty|"
                    r"rrelu|poisson|gumbel)")
UNSUPPORTED = {"to", "type", "numpy", "item", "tolist", "data_ptr", "cuda", "npu", "cpu", "backward", "apply_"}
# Of the functions that can be recorded, these call an argument. The rest of the pattern is for names that a later list may get.
NEVER_CALLED = re.compile(r"^(map_|map2_|triplet_margin_with_distance_loss|load|save|from_\w+|set_\w*|manual_seed|compile|"
                          r"hub|jit|ops|package|classes|utils|serialization|library|import_\w+|__reduce\w*__|__setstate__)$")
# Enumerators that functions of the list take as text: modes, reductions, paddings, roundings, norms, drivers, sides.
TEXTS = frozenset(
    "none mean sum batchmean max min prod amax amin add multiply tanh nearest nearest-exact linear bilinear bicubic "
    "trilinear area constant reflect replicate circular zeros border reflection same valid trunc floor fro nuc inf -inf "
    "lower higher midpoint left right reduced complete raw r gels gelsy gelsd gelss gesvd gesvdj gesvda ij xy L U".split())
EQUATION = re.compile(r"^[A-Za-z ,.]{0,512}(->[A-Za-z .]{0,512})?$")
NAME = re.compile(r"^(Functional|Tensor|Torch)\.([A-Za-z_][A-Za-z0-9_]*)\.(\d+)\.forward$")
MAX_ELEMENTS = 1 << 28


class Skip(Exception):
    """The call cannot be checked; the text says why."""


def resolve(prefix: str, op: str) -> Callable[..., Any]:
    """Returns the function of a recorded call. A dump is untrusted input, so only functions of the API list are called. Raises Skip."""
    recorded = api_list()[prefix]
    owners: dict[str, list[tuple[Any, str]]] = {
        "Functional": [(torch.nn.functional, "")], "Tensor": [(torch.Tensor, "")],
        "Torch": [(torch, ""), (torch.linalg, "linalg.")]}
    listed = [owner for owner, path in owners[prefix] if path + op in recorded]
    if not listed:
        raise Skip(f"{prefix}.{op} is not in the list of functions that are recorded; it is not called")
    if NEVER_CALLED.match(op):
        raise Skip(f"{prefix}.{op} calls what it is given, or touches files or the process; it is not called")
    for owner in listed:
        function = getattr(owner, op, None)
        if callable(function) and not isinstance(function, type):
            resolved: Callable[..., Any] = function
            return resolved
    raise Skip(f"{prefix}.{op} is not in this PyTorch")


def check_texts(op: str, value: Any) -> None:
    """Raises Skip for a text argument that is not the name of a mode, because it could be a path."""
    if isinstance(value, str):
        if value not in TEXTS and not (op == "einsum" and EQUATION.match(value)):
            raise Skip(f"its argument {value[:80]!r} is not a mode, reduction or padding that a function takes; it is not called")
    elif isinstance(value, dict):
        for item in value.values():
            check_texts(op, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_texts(op, item)


class Inputs:
    """Makes the argument values of one call from their records: loads saved tensors from `data_dir` and draws others from the
    recorded range, seeded by `seed`. Methods raise Skip for a value that cannot be made."""

    def __init__(self, data_dir: str | None, seed: int, force: bool = False) -> None:
        self.data_dir, self.force = data_dir, force
        self.generator = torch.Generator().manual_seed(seed)

    def make(self, record: Any) -> Any:
        if record is None:
            return None
        if isinstance(record, list):
            return [self.make(item) for item in record]
        kind = record.get("type") if isinstance(record, dict) else None
        if not isinstance(kind, str):
            if isinstance(record, dict) and record:
                return {key: self.make(item) for key, item in record.items()}
            raise Skip("an input was not recorded")
        if kind == "torch.Tensor":
            return self.tensor(record)
        value = record.get("value")
        if kind in ("int", "float", "bool", "str"):
            if value is not None and not isinstance(value, (bool, int, float, str)):
                raise Skip(f"an input of type {kind} has no such value")
            return value
        if kind in ("slice", "torch.Size"):
            if not isinstance(value, list) or not all(item is None or isinstance(item, int) for item in value):
                raise Skip(f"an input of type {kind} has no such value")
            return slice(*value) if kind == "slice" else torch.Size(value)
        if kind == "ellipsis":
            return ...
        if kind == "torch.dtype":
            return self.constant(value, torch.dtype)
        if kind == "torch.device":
            return torch.device("cpu")
        if kind == "torch.memory_format":
            return self.constant(record.get("format"), torch.memory_format)
        raise Skip(f"an input of type {kind} cannot be made")

    @staticmethod
    def constant(name: Any, kind: type) -> Any:
        """Returns torch.NAME if it is an instance of `kind`. Another object, such as a function, is refused."""
        value = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else None
        if not isinstance(value, kind):
            raise Skip(f"{str(name)[:80]!r} is not a {kind.__name__} of this PyTorch")
        return value

    def tensor(self, record: dict[str, Any]) -> torch.Tensor:
        name = record.get("data_name")
        if self.data_dir and isinstance(name, str) and "/" not in name and name.endswith(".pt"):
            path = os.path.join(self.data_dir, name)
            if os.path.exists(path):
                with open_input(path, self.force, "rb") as file:
                    value = torch.load(file, map_location="cpu", weights_only=True)
                if not isinstance(value, torch.Tensor):
                    raise Skip(f"{name} holds no tensor")
                return value.requires_grad_(bool(record.get("requires_grad")) and value.is_floating_point())
        dtype = getattr(torch, str(record.get("dtype", "")).removeprefix("torch."), None)
        shape = record.get("shape")
        if not isinstance(dtype, torch.dtype) or not isinstance(shape, list):
            raise Skip("a tensor without dtype or shape")
        if math.prod(shape) > MAX_ELEMENTS:
            raise Skip(f"a tensor of {math.prod(shape)} elements is too large")
        value = self.draw(dtype, shape, record.get("Min"), record.get("Max"))
        return value.requires_grad_(bool(record.get("requires_grad")) and value.is_floating_point())

    def draw(self, dtype: torch.dtype, shape: list[int], low: Any, high: Any) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.rand(shape, generator=self.generator) < 0.5
        if low is None or high is None:
            if math.prod(shape) == 0:
                return torch.empty(shape, dtype=dtype)
            raise Skip("a tensor without Min and Max")
        if dtype.is_complex:
            raise Skip(f"dtype {dtype}")
        if not dtype.is_floating_point:
            return torch.randint(int(low), int(high) + 1, shape, generator=self.generator).to(dtype)
        if math.isnan(high):
            return torch.full(shape, math.nan, dtype=dtype)
        inner = [0.0 if math.isinf(x) else float(x) for x in (low, high)]
        unit = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        value = (inner[0] + (inner[1] - inner[0]) * unit).to(dtype)
        if value.numel():  # Places the recorded extremes in the tensor.
            value.view(-1)[0], value.view(-1)[-1] = low, high
        return value


def convert(value: Any, dtype: torch.dtype) -> Any:
    """Copies a structure, with floating-point tensors converted to `dtype` and requires_grad kept."""
    if isinstance(value, torch.Tensor):
        grad = value.requires_grad
        copy = value.detach().clone()
        copy = copy.to(dtype) if copy.is_floating_point() else copy
        return copy.requires_grad_(grad)
    if isinstance(value, (list, tuple)):
        return [convert(v, dtype) for v in value]
    if isinstance(value, dict):
        return {k: convert(v, dtype) for k, v in value.items()}
    return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def execute(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype | None) -> tuple[list[Any], list[Any], str]:
    """Runs the call in `dtype` (None: as recorded). Returns its outputs, the gradients of its leaves, and the reason if there are
    no gradients."""
    if dtype is not None:
        args, kwargs = convert(args, dtype), convert(kwargs, dtype)
    leaves = [t for t in tensors([args, kwargs]) if t.requires_grad]
    # Clones, because an in-place operator must not write to a leaf that requires a gradient.
    args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    outputs = list(tensors(function(*args, **kwargs)))
    roots = [o for o in outputs if o.requires_grad and o.is_floating_point()]
    if not leaves or not roots:
        return [o.detach() for o in outputs], [], "no input requires a gradient"
    # Random output gradients, since ones would cancel in a softmax or a norm. Both runs draw the same values.
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.rand(r.shape, generator=generator, dtype=torch.float32).to(r.dtype) for r in roots]
    grads = torch.autograd.grad(roots, leaves, seeds, allow_unused=True)
    return [o.detach() for o in outputs], [g for g in grads if g is not None], ""


def measure(op: str, value: torch.Tensor, golden: torch.Tensor) -> dict[str, Any]:
    """Compares an output with its reference and returns a line of the details file."""
    row: dict[str, Any] = dict.fromkeys(DETAIL_COLUMNS, "")
    row.update({"Dtype": str(value.dtype), "Reference Dtype": str(golden.dtype), "Shape": list(value.shape),
                "Status": "pass"})
    if value.shape != golden.shape:
        return row | {"Status": "error", "Message": f"shape {list(value.shape)} against {list(golden.shape)}"}
    if value.dtype not in BOUNDS:
        if value.dtype == torch.float64 or value.dtype.is_complex:
            return row | {"Status": "SKIP", "Message": f"nothing here is more precise than {value.dtype}"}
        wrong = int((value != golden).sum()) / max(1, value.numel())
        return row | {"Standard": "binary", "Rel Err Ratio": wrong, "Status": "error" if wrong else "pass"}
    if value.numel() == 0:
        return row | {"Standard": "absolute", "Message": "empty"}
    small_limit, atol, rtol, accumulated = BOUNDS[value.dtype]
    bound = accumulated if ACCUMULATING.search(op) else rtol
    n, g = value.double().view(-1), golden.double().view(-1)
    special = ~(torch.isfinite(n) & torch.isfinite(g))
    # A reference value beyond the range of the dtype is expected to be an infinity in it.
    limit = torch.finfo(value.dtype).max
    clipped = torch.where(g.abs() > limit, torch.sign(g) * math.inf, g)
    special_wrong = special & ~((n == clipped) | (torch.isnan(n) & torch.isnan(g)))
    n, g = n[~special], g[~special]
    d = (n - g).abs()
    small = g.abs() <= small_limit
    relative = d / (g.abs() + (2**-8 if value.dtype == torch.bfloat16 else torch.finfo(torch.float64).eps))
    normal = relative[~small]
    mantissa, least = ULP[value.dtype]
    exponent = torch.clamp(torch.floor(torch.log2(g.abs().clamp_min(1e-300))), min=least)
    ulp = (d * torch.pow(torch.tensor(2.0, dtype=torch.float64), mantissa - exponent))[~small]

    def top(t: torch.Tensor) -> float:
        return float(t.max()) if t.numel() else 0.0

    def share(mask: torch.Tensor, of: int) -> float:
        return float(mask.sum()) / of if of else 0.0

    scale = float(g.abs().max()) if g.numel() else 0.0
    # Sums may cancel, so they are judged relative to the largest magnitude, which stands for that of the summands.
    small_bound = max(atol, bound * scale) if bound == accumulated else atol
    normal_wrong = (normal > bound) & (d[~small] > bound * scale) if bound == accumulated else normal > bound
    small_wrong = d[small] > small_bound
    norms = float(n.norm() * g.norm())
    beside = acc_standards.metrics("benchmark", value, golden)
    row.update({"Standard": "accumulative" if bound == accumulated else "absolute",
                "Cosine": float(n.dot(g)) / norms if norms else 1.0, "Max Abs Err": top(d), "Max Rel Err": top(normal),
                "Mean Rel Err": float(normal.mean()) if normal.numel() else 0.0,
                "RMSE": float(d[~small].square().mean().sqrt()) if normal.numel() else 0.0,
                "Small Value Err Ratio": share(small_wrong, int(small.sum())),
                "Rel Err Ratio": share(normal_wrong, normal.numel()),
                "Inf/Nan Err Ratio": share(special_wrong, value.numel()),
                **{acc_compare.BENCHMARK[name]: beside[name] for name in ("small_share", "balance")},
                "Err Balance": abs(int((n > g).sum()) - int((n < g).sum())) / max(1, n.numel()), "Max ULP": top(ulp)})
    if row["Small Value Err Ratio"] or row["Rel Err Ratio"] or row["Inf/Nan Err Ratio"]:
        row["Status"] = "error"
    return row


def verdict(rows: list[dict[str, Any]]) -> str:
    states = {row["Status"] for row in rows}
    return "error" if "error" in states else "pass" if "pass" in states else "SKIP"


def check(name: str, record: dict[str, Any], data_dir: str | None, seed: int, force: bool = False) -> tuple[list[Any], list[dict[str, Any]], Any]:
    """Checks one forward entry. Returns its result line, its detail lines and the inputs (None if it was skipped). Raises Refused
    for a file that the permission rule forbids."""
    match = NAME.match(name)
    try:
        if match is None:
            raise Skip("not a call of torch, torch.Tensor or torch.nn.functional")
        prefix, op = match.group(1), match.group(2)
        if RANDOM.search(op) or op in UNSUPPORTED:
            raise Skip(f"{op} has no reproducible result to check")
        if "input_args" not in record:
            raise Skip("its inputs were filtered out")
        function = resolve(prefix, op)
        inputs = Inputs(data_dir, seed, force)
        args = inputs.make(record["input_args"])
        kwargs = {key: inputs.make(value) for key, value in (record.get("input_kwargs") or {}).items()}
        check_texts(op, [args, kwargs])
        state = torch.random.get_rng_state()
        outputs, grads, why = execute(function, convert_same(args), convert_same(kwargs), None)
        torch.random.set_rng_state(state)
        golden, golden_grads, _ = execute(function, args, kwargs, torch.float64)
        if not outputs:
            raise Skip("it returns no tensor")
        details = []
        for kind, ours, theirs in (("forward.output", outputs, golden), ("backward.output", grads, golden_grads)):
            for index, (a, b) in enumerate(zip(ours, theirs)):
                details.append(measure(op, a, b) | {"API Name": f"{name.removesuffix('.forward')}.{kind}.{index}"})
        forward = verdict(details[:len(outputs)])
        backward = verdict(details[len(outputs):]) if grads else "SKIP"
        return [name.removesuffix(".forward"), forward, backward, why if not grads else ""], details, (args, kwargs)
    except Refused:
        raise
    except Skip as reason:
        return [name.removesuffix(".forward"), "SKIP", "SKIP", str(reason)], [], None
    except Exception as fault:  # noqa: BLE001 - of the operator: a wrong argument, no kernel for the dtype
        text = " ".join(str(fault).split())[:300]
        return [name.removesuffix(".forward"), "SKIP", "SKIP", f"{type(fault).__name__}: {text}"], [], None


def convert_same(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, list):
        return [convert_same(v) for v in value]
    if isinstance(value, dict):
        return {k: convert_same(v) for k, v in value.items()}
    return value


@functools.cache
def api_list() -> dict[str, frozenset[str]]:
    """Returns the functions that are recorded under each prefix; those of torch.linalg are named linalg.NAME."""
    families = json.loads((pathlib.Path(__file__).parent / "pytorch" / "data" / "apis.json").read_text("utf-8"))
    return {prefix: frozenset(families[prefix]) for prefix in ("Functional", "Tensor", "Torch")}


@functools.cache
def supported() -> frozenset[str]:
    """Returns the API names that a dump can have, as its entries spell them."""
    return frozenset(name.rpartition(".")[2] for names in api_list().values() for name in names)


def checked_list(name: str, value: Any) -> list[str]:
    """Checks and returns a white_list or black_list of the command line or the config. Raises Refused."""
    if not isinstance(value, list) or not all(isinstance(api, str) for api in value):
        raise Refused(f"{name}: expected a list of API names")
    unknown = [api for api in value if api not in supported()]
    if unknown:
        raise Refused(f"{name}: {', '.join(unknown)}: no API that is dumped (a name as in Torch.NAME.0.forward)")
    return value


def read_config(path: str, force: bool) -> dict[str, Any]:
    """Reads the acc_check section of a config.json. Warns about unknown keys. Raises Refused."""
    try:
        with open_input(path, force) as file:
            config = json.load(file)
    except (OSError, ValueError, RecursionError) as fault:
        raise Refused(f"{path}: is not a config.json ({' '.join(str(fault).split())})") from None
    section = config.get("acc_check", {}) if isinstance(config, dict) else None
    if not isinstance(section, dict):
        raise Refused(f"{path}: acc_check is not an object")
    known = ("white_list", "black_list", "error_data_path")
    for key in section:
        if key not in known:
            sys.stderr.write(f"rankprobe: warning: {show(path)}: acc_check.{show(key)} is unknown; known: {', '.join(known)}\n")
    return {key: section[key] for key in known if key in section}


def error_directory(path: Any, out_path: str) -> str:
    """Returns the directory for inputs of failed calls: below error_data_path, which must exist, else below the results. Raises
    Refused."""
    if path is None:
        return os.path.join(out_path, "error_data")
    if not isinstance(path, str) or not os.path.isdir(path):
        raise Refused(f"error_data_path: {path}: is not a directory")
    return os.path.join(path, "error_data")


def main() -> int:
    os.umask(0o027)  # Files are created with mode 0640, directories with 0750.
    try:
        return run()
    except Refused as reason:
        sys.stderr.write(f"rankprobe: {show(reason)}\n")
        return 2


def run() -> int:
    parser = argparse.ArgumentParser(prog="rankprobe acc_check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-api_info", "--api_info_file")
    parser.add_argument("--compare", nargs=2, metavar=("DEVICE", "REFERENCE"), help="two details files; runs nothing")
    parser.add_argument("-o", "--out_path", default="./output")
    parser.add_argument("-csv_path", "--result_csv_path", help="a result csv to continue")
    parser.add_argument("-save_error_data", action="store_true")
    parser.add_argument("-f", "--filter_api", action="store_true", help="one call for each op and signature")
    parser.add_argument("-config", "--config_path", help="a config.json with an acc_check section")
    parser.add_argument("--white_list", nargs="*", help="only these APIs, except those of the black list")
    parser.add_argument("--black_list", nargs="*", help="not these APIs")
    parser.add_argument("--error_data_path", help="an existing directory for what -save_error_data saves")
    parser.add_argument("--force", action="store_true", help="read files that the permission rule refuses, with a warning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, metavar="K", help="run each K times and look for the recorded result (acc_repeat.py)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (args.compare is None) == (args.api_info_file is None):
        parser.error("one of -api_info and --compare is needed")
    if args.compare is not None:
        device, reference = args.compare
        return acc_compare.run(device, reference, args.out_path, args.json, args.force)
    config = read_config(args.config_path, args.force) if args.config_path else {}
    given = {key: getattr(args, key) for key in ("white_list", "black_list", "error_data_path")}
    config.update({key: value for key, value in given.items() if value is not None})
    white = checked_list("white_list", config.get("white_list", []))
    black = checked_list("black_list", config.get("black_list", []))
    error_dir = error_directory(config.get("error_data_path"), args.out_path)
    torch.set_num_threads(1)  # For small tensors, a thread pool costs more than it saves.
    info = read_dump(args.api_info_file, args.force)
    directory = os.path.dirname(os.path.abspath(args.api_info_file))
    data_dir = os.path.join(directory, "dump_tensor_data") if info.get("task") == "tensor" else None
    if args.repeat is not None:
        from rankprobe import acc_repeat  # Imported here, because it imports this module.
        return acc_repeat.run(info, data_dir, args.repeat, args.json, args.force)
    os.makedirs(args.out_path, exist_ok=True)
    done: set[str] = set()
    if args.result_csv_path:
        try:
            with open_input(args.result_csv_path, args.force) as file:
                rows = list(csv.reader(file))
        except OSError as fault:
            raise Refused(str(fault)) from None
        if not rows or rows[0] != RESULT_COLUMNS:
            raise Refused(f"{args.result_csv_path}: is not a result of acc_check")
        done = {row[0] for row in rows[1:] if row}
        result_path = args.result_csv_path
    else:
        result_path = os.path.join(args.out_path, f"accuracy_checking_result_{time.strftime('%Y%m%d%H%M%S')}.csv")
    detail_path = result_path.replace("_result_", "_details_")
    fresh = not args.result_csv_path
    counts = {"pass": 0, "error": 0, "SKIP": 0}
    seen: set[str] = set()
    with open(result_path, "w" if fresh else "a", newline="", encoding="utf-8") as results, \
            open(detail_path, "w" if fresh else "a", newline="", encoding="utf-8") as details:
        result_writer, detail_writer = csv.writer(results), csv.DictWriter(details, DETAIL_COLUMNS)
        if fresh:
            result_writer.writerow(RESULT_COLUMNS)
            detail_writer.writeheader()
        for name, record in info["data"].items():
            if not name.endswith(".forward") or not isinstance(record, dict) or name.removesuffix(".forward") in done:
                continue
            op = name.split(".")[1] if name.count(".") >= 2 else name
            # An API in both lists is excluded.
            if (white and op not in white) or op in black:
                continue
            if args.filter_api:
                signature = op + json.dumps([record.get("input_args"), record.get("input_kwargs")],
                                            default=str).translate(str.maketrans("", "", "0123456789."))
                if signature in seen:
                    continue
                seen.add(signature)
            result, lines, inputs = check(name, record, data_dir, args.seed, args.force)
            result_writer.writerow(result)
            for line in lines:
                detail_writer.writerow(line)
            results.flush()
            details.flush()
            worst = "error" if "error" in result[1:3] else result[1]
            counts[worst] += 1
            if worst == "error" and args.save_error_data:
                os.makedirs(error_dir, exist_ok=True)
                for index, tensor in enumerate(tensors(inputs)):
                    torch.save(tensor.detach(), os.path.join(error_dir, f"{name}.input.{index}.pt"))
    if args.json:
        print(json.dumps({"result": result_path, "details": detail_path, **counts}))
    else:
        print(f"{show(result_path)}: {counts['pass']} pass, {counts['error']} error, {counts['SKIP']} skipped")
    return 1 if counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
