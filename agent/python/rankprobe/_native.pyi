# SPDX-License-Identifier: Apache-2.0
# rankprobe._native: the recorder (agent/python/native). rankprobe.Session is its
# public part; the rest is for rankprobe.pytorch, and may change with any version.
# A tensor is a NumPy array or a torch tensor of any PyTorch: read by address,
# shape, strides and dtype.
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Protocol, TypedDict

__version__: str

class _Stats(TypedDict):
    connected: bool
    silent: bool
    queue_bytes: int
    queue_peak_bytes: int
    records: int
    payloads: int
    payload_bytes: int
    lost_records: int
    lost_payloads: int
    reconnects: int
    last_error: str

class _ParsedConfig(TypedDict):
    plan: dict[str, Any]
    warnings: list[str]

class Session:
    """One process' session with a collector: its steps, and what is recorded in them.

    After close() methods raise RuntimeError.
    """

    def __init__(self, collector: str = ..., run: str = ..., rank: int | None = ..., world_size: int | None = ...,
                 config_json: str = ..., framework: str = ..., config_path: str = ...,
                 on_collector_missing: str = ..., kept_directory: str = ...) -> None:
        """Raises ValueError for a bad argument or config, RuntimeError or TimeoutError
        when no collector answers and that is to fail. Empty text, None: from the environment.
        kept_directory: stop() writes the records there instead of waiting for the collector, unless
        RANKPROBE_STOP or RANKPROBE_SPOOL say otherwise."""

    @property
    def recording(self) -> bool:
        """Whether this step of this rank is recorded."""

    @property
    def enabled(self) -> bool:
        """Whether the plan in force has dumping on."""

    @property
    def current_step(self) -> int: ...
    def wait_connected(self, seconds: float = ...) -> None:
        """Raises TimeoutError."""

    @property
    def request_missing(self) -> bool:
        """The last start() would have recorded, but the plan's request_id is not among its requests."""

    @property
    def step_is_empty(self) -> bool:
        """A step has begun, and no call was made in it."""

    def forget_empty_step(self) -> bool:
        """Before close(): takes back a step that has begun and in which no call was made. Whether there was one."""

    def start(self, rank: int | None = ..., requests: Sequence[tuple[str, int, int | None]] | None = ...) -> None:
        """Recording on for this step, if the plan wants it. rank: of torch.distributed or of its like, once it is known.
        requests: of a server's step, in the order of its rows: id, tokens (> 0), position of the first one."""

    def stop(self, at_most_seconds: Callable[[], float | None] | None = ...) -> bool:
        """Recording off. True: what was recorded is safe in kept_directory, or there is nothing. False: the collector
        was waited for, no longer than at_most_seconds, which is asked only then; what it has not by then is queued."""

    def step(self) -> None:
        """The step is over, its tree is complete."""

    def idle_calls(self) -> tuple[Callable[[], bool], Callable[[], bool]]:
        """Functions that begin and end a step which records nothing after another one, for a fraction of the cost of start() and
        step(). They return False, having done nothing, if start() or step() is to be called."""

    def set_init_step(self, step: int) -> None:
        """The number of the first step. ValueError: negative, or too late."""

    def set_rank(self, rank: int, world_size: int) -> None: ...
    def call(self, prefix: str, op: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
        """Records one whole call. Its entry's name in dump.json, "" if it is not recorded."""

    def begin_module(self, name: str, inputs: Sequence[Any]) -> int:
        """Opens a module; what is called until end_module is inside it. How many are open."""

    def end_module(self, outputs: Sequence[Any], parameters: Mapping[str, Any] = ...) -> None:
        """Closes the module that was opened last. ValueError: none is open."""

    def parameter_gradient(self, module: str, parameter: str, gradient: Any) -> None:
        """Records a gradient of the module of this name."""

    def flush(self, seconds: float = ...) -> None:
        """Until all records are committed by the collector; raises TimeoutError."""

    def stats(self) -> _Stats: ...
    def close(self) -> tuple[int, int, int, int] | None:
        """Sends what is left, and ends the session. What nobody will have: records, payloads, their first and last
        step (-1: of none); None: nothing is lost, or a spool keeps it."""

    def abandon(self) -> None:
        """In place of close() where the program has closed our descriptors: nothing is sent or waited for any more."""

    def capture(self, torch: dict[str, Any], skipped_directory: str) -> Capture: ...
    def step_exports(self, collector: str, run: str, root: str, directory: str, manifests: str) -> StepExporter: ...
    def edit_config(self, path: str, config_json: str, fault: str, at_once: bool) -> tuple[str, list[str]]:
        """(fault that keeps dumping off or "", warnings)."""

    def refuse_recording(self, reason: str, only_apis: bool = False) -> None:
        """This process cannot record: plans that enable recording are refused for this reason, which `rankprobe status` shows."""

    def report_error(self, message: str) -> None:
        """An event of the run, which `rankprobe events` shows, also while nothing is recorded."""

    def plan(self) -> dict[str, Any]:
        """The plan in force; the same dict as long as it is the same plan."""

    def asked_plan(self) -> dict[str, Any] | None:
        """What the last start() was asked for, where plan() may be the flight recorder's. None: recording is off."""

class StepExporter:
    """Trees of finished steps, written by a private collector beside the training."""

    def begin(self, step: int) -> None: ...
    def stuck(self) -> None:
        """The collector commits nothing for now: the next export is given up soon."""

    def wait(self) -> None: ...
    def take_faults(self) -> list[str]: ...
    def close(self) -> None: ...

class ConfigFile:
    """A config file that is checked for edits."""

    def __init__(self, path: str) -> None: ...
    def look(self) -> tuple[bytes, str] | None:
        """(bytes, fault) of an edit; None: there was none."""

class ModuleCall:
    """One module call between its hooks."""

    @property
    def name(self) -> str: ...
    @property
    def kept(self) -> bool: ...

class ModuleGradients:
    """Takes the gradients of one module call."""

    def outputs(self, outputs: tuple[Any, ...]) -> bool: ...

class ModuleForwards:
    """Forwards of hooked modules that are open; see module_forwards.h."""

    def __init__(self, capture: Capture, wanting: Callable[[Any], tuple[Any, ...]], parameters: Callable[[Any], dict[str, Any]]) -> None: ...
    backward: bool
    parameters_grad: bool
    def forget_watched(self) -> None: ...
    def module_begin(self, name: str, full: bool) -> _ModuleBegin: ...
    def module_end(self) -> Callable[[Any, Any], bool]:
        """(module, output) -> as end()."""
    def parameter_hook(self, module: str, name: str, parameter: Any, of_node: bool, report: Callable[[Exception], None]) -> Callable[..., None]: ...
    def push(self, module: Any, call: ModuleCall | None) -> None: ...
    def end(self, module: Any, output: Any) -> bool:
        """Whether an input was changed in place so that its gradient is lost."""
    def abandon(self, module: Any, stopped: bool) -> None: ...
    def clear(self) -> None: ...

class _ModuleBegin(Protocol):
    """What a module's hook calls when its forward begins."""

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        """Whether its parameters must be watched: it is recorded, and they are not those of set_known(), or one that was not
        watched wants a gradient now."""
    def set_known(self, module: Any, watched: dict[str, weakref.ref[Any]]) -> None:
        """Of the parameters that it has now those that are named have these hooks."""

class SavedValue:
    """A value of save()."""

class Capture:
    """The recorder that hooks of PyTorch use. Faults of ours are counted, never raised into the model."""

    enabled: bool
    @property
    def active(self) -> bool: ...
    @property
    def wants_loss(self) -> bool: ...
    @property
    def wants_replica(self) -> bool: ...
    @property
    def wants_facts(self) -> bool: ...
    @property
    def wants_tokens(self) -> bool:
        """Whether the flight recorder keeps the tokens of a server's requests."""

    def report_tokens(self, tokens: Sequence[tuple[str, int, int, float, float]]) -> None:
        """Of a server's step: request, index among its generated tokens, number in the vocabulary, log probability, entropy."""

    @property
    def seen(self) -> int: ...
    @property
    def matched(self) -> int: ...
    @property
    def faults(self) -> int: ...
    def set_apis_enabled(self, enabled: bool) -> None: ...
    def set_modules_forced(self, forced: bool) -> None: ...
    def enter_quiet(self) -> None: ...
    def leave_quiet(self) -> None: ...
    def begin_module(self, name: str, args: tuple[Any, ...], kwargs: Any = ...) -> ModuleCall | None:
        """None: it is not recorded."""

    def begin_compiled_module(self, name: str, args: tuple[Any, ...], kwargs: Any, frames: list[str]) -> ModuleCall | None:
        """Of a call that compiled code makes. frames: where a compiler found it, innermost first."""

    def begin_compiled_backward(self, module: ModuleCall) -> None: ...
    def compiled_backward(self, module: ModuleCall, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None: ...
    def end_module(self, module: ModuleCall, output: Any, parameters: dict[str, Any]) -> None: ...
    def abandon_module(self, module: ModuleCall) -> None: ...
    def reset_modules(self) -> None: ...
    def module_gradients(self, module: ModuleCall, inputs: tuple[Any, ...]) -> ModuleGradients: ...
    def parameter_gradient(self, module: str, name: str, gradient: Any) -> None: ...
    def push_scope(self, name: str) -> None: ...
    def pop_scope(self, name: str) -> None: ...
    def work_done(self, work: Any) -> None: ...
    def save(self, name: str, value: Any, skeleton: Any) -> SavedValue | None:
        """None: the plan does not want it."""

    def save_gradient(self, saved: SavedValue, path: str, gradient: Any) -> None: ...
    def save_monitored(self, name: str, values: dict[str, Any]) -> float | None:
        """Task monitor: one record. The norm of values["grad"], where it is known."""
    def report_loss(self, loss: float) -> None: ...
    def report_replica(self, tensors: list[Any]) -> None: ...
    def digest(self, tensor: Any, limit_bytes: int) -> str: ...
    def record_facts(self, facts: list[tuple[str, str, str]]) -> None:
        """(section, name, value) of the step that is recorded; nothing when none is."""

    def inject_faults(self, count: int) -> None: ...
    def report_fault(self, what: str) -> None: ...

class ApiFunction:
    """What api() makes of a function that does not bind to objects, like those of torch._C."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class ApiMethod:
    """The same for one that does, like a method."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = ...) -> Any: ...

def api(function: Callable[..., Any], capture: Capture, prefix: str, op: str,
        traits: dict[str, Any] = ..., redirected: Optional[Callable[..., Any]] = None) -> ApiFunction | ApiMethod:
    """Stands in for `function`: records the outermost call of a thread. redirected: the Python function whose defaults each call uses."""

def traced_module_call(callback: Any) -> ModuleCall:
    """A call that a compiler traces: its gradients go to `callback`."""

def all_hooked(roots: list[Any], hooked: dict[int, Any], skipped: Callable[[Any], bool]) -> bool:
    """Whether each module below `roots` is in `hooked`, weak references by id, or skipped(module) is true."""

class Redirect:
    """Redirects the calls of a function. `original` is never redirected. put(target) sends calls to `target`, of several targets
    to the last one; take(target) removes it."""

    @property
    def original(self) -> Callable[..., Any]: ...
    def put(self, target: Callable[..., Any]) -> None: ...
    def take(self, target: Callable[..., Any]) -> None: ...

class RedirectedCalls:
    """Redirects that are put and taken together."""

    def add(self, redirect: Redirect, target: Callable[..., Any]) -> None: ...
    def put(self) -> None: ...
    def take(self) -> None: ...

def slot_redirect(function: Any) -> Redirect | None:
    """None: not what assigns items of a type of C, of which one is redirected in a process."""

def call_redirect(function: Any) -> Redirect | None:
    """None: not a function of C's."""

def function_redirect(function: Callable[..., Any], original: Callable[..., Any],
                      make_code: Callable[[Callable[..., Any], Any], Any], file: str) -> Redirect:
    """Redirects a Python function. original: a function with the same code, which is never redirected. make_code(target, own)
    returns code that calls `target`, for a function whose code is `own`; `file` is the co_filename of all code that it returns."""

def place_redirect(host: Any, name: str, original: Any) -> Redirect:
    """Sets host.name to the target. If the program sets the attribute in the meantime, its value stays."""

class DeviceDelivery:
    """Numbers on their way from devices: of the slots from `first` to `end` (exclusive)."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    def wait(self, address: int) -> None:
        """Waits for the device, then writes four int64 a slot there. RuntimeError: the device failed, numbers are lost."""

class DeviceStatistics:
    """Statistics of tensors on CUDA devices, reduced by a kernel of ours; hands out the slots of all tensors on devices."""

    def __init__(self, library: str) -> None:
        """library: the driver's, loaded when it is first needed; "": none."""
    def reduce(self, dtype: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...], device: int,
               stream: int) -> Optional[int]:
        """The slot of the numbers of a tensor with elements, written by what `stream` holds by now; strides in elements.
        None: not a tensor for the kernel, or not now."""
    @property
    def full(self) -> bool:
        """As much lies on the devices as should: take it."""
    def take_slot(self) -> int: ...
    @property
    def first_slot(self) -> int: ...
    @property
    def next_slot(self) -> int: ...
    def take_error(self) -> str:
        """What turned the kernel off, once; "": nothing."""
    def devices(self) -> list[int]: ...
    def take_pending(self, streams: dict[int, int]) -> DeviceDelivery:
        """streams: of each device, the stream that the program computes in now."""

def raise_later_if_programs(error: BaseException) -> bool:
    """Whether `error`, which was caught, was raised by a signal handler of the program, or is no Exception: it is raised
    again in the main thread, soon."""

def parse_config(config_json: str) -> _ParsedConfig:
    """Raises ValueError naming every fault."""

def check_config_file(file: str, text: str) -> list[str]:
    """Warnings; ValueError naming every fault and unknown key, each after FILE:LINE:COLUMN."""

def parse_api_list(text: str) -> dict[str, list[str]]:
    """Prefix -> names, of JSON or of support_wrap_ops.yaml's form. ValueError says where it is bad."""

def content_digest(data: Any) -> str:
    """XXH3-64 of contiguous bytes, 16 hexadecimal digits."""

def memory_digest(address: int, size: int) -> str:
    """content_digest of `size` bytes at `address`, which are the caller's."""

def words_digest(words: tuple[int, ...], tail: bytes) -> str:
    """content_digest of integers below 2**64, eight bytes each, lowest first, and of `tail` behind them."""

def fault_line(path: str, fault: str) -> str: ...
