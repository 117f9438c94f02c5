# SPDX-License-Identifier: Apache-2.0
"""Programs as described in programs.py that test process state: signals, output streams, descriptors, released memory, limits, child
processes, and proxy objects."""

from __future__ import annotations

_STEP = "o.zero_grad(); l.backward(); o.step(); d.stop(); d.step()\n"
_MODEL = "m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); o = torch.optim.SGD(m.parameters(), lr=.1)\n"

PROCESS: dict[str, tuple[str, str]] = {
    "signals_are_waited_for": ("OpenMathLib/OpenBLAS#4054", """
import os, signal
""" + _MODEL + """
d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """both = {signal.SIGUSR1, signal.SIGTERM}; signal.pthread_sigmask(signal.SIG_BLOCK, both)
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); [os.kill(os.getpid(), s) for s in both]; """ + _STEP + """
    print(sorted(signal.sigpending()), signal.sigwait({signal.SIGUSR1}), signal.sigwait({signal.SIGTERM}))
result = [m, o, l]
"""),
    "print_is_replaced": ("facebookresearch/mae#161", """
import builtins, sys
plain, old = builtins.print, sys.stderr
class Copy:
    def write(s, t): old.write(t)
    def flush(s): old.flush()
def stamped(*a, **k): plain("[now] ", end=""); plain(*a, **k)
builtins.print, sys.stderr = stamped, Copy()
""" + _MODEL + """
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """; print("loss", l.item())
builtins.print, sys.stderr = plain, old; result = [m, o, l]
"""),
    "standard_error_is_read": ("wandb/wandb#1921", """
import contextlib
read = io.StringIO()
with contextlib.redirect_stderr(read):
    """ + _MODEL + """
    for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(repr(read.getvalue()))
result = [m, o, l]
"""),
    "a_file_has_the_number_of_standard_error": ("rsyslog/rsyslog#1526", """
import os
kept = os.dup(2); os.close(2); f = open("data.bin", "wb", buffering=0); print(f.fileno())
""" + _MODEL + """
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """; f.write(b"x")
os.dup2(kept, 2); print(open("data.bin", "rb").read()); result = [m, o, l]
"""),
    "classes_are_pickled_by_value": ("ray-project/ray#3085", """
try: import cloudpickle
except ImportError: cloudpickle = pickle
class Mine(torch.optim.SGD):
    def step(s, closure=None): return super().step(closure)
m = nn.Linear(4, 1); o = Mine(m.parameters(), lr=.1)
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); o.zero_grad(); l.backward(); o.step(); c = pickle.loads(cloudpickle.dumps((m, o, Mine, m.forward, torch.conv1d))); c[1].step(); d.stop(); d.step()
    print(type(c[1]).__name__, c[2].step.__name__, c[4](torch.ones(1, 1, 2), torch.ones(1, 1, 1)).shape)
result = [m, o, l, c[1]]
"""),
    "memory_is_given_back": ("python/cpython#115635", """
import mmap, weakref
from multiprocessing import shared_memory
import numpy as np
""" + _MODEL + """seen = []
def close(what):
    try: what(); print("closed")
    except (BufferError, ValueError) as e: print(e)
for i in range(STEPS):
    d.start(m); a = np.ones(8, np.float32); t = torch.from_numpy(a); x = torch.relu(t[:4].reshape(1, 4)) * 2 + m(t.view(2, 4)).detach(); del t; close(lambda: a.resize(16))
    p = mmap.mmap(-1, 4096); t = torch.frombuffer(p, dtype=torch.float32); t.fill_(1); l = m(t[:8].view(2, 4)).sum() * 0; y = torch.sigmoid(t).sum(); del t; o.zero_grad(); l.backward(); del l; close(p.close)
    s = shared_memory.SharedMemory(create=True, size=64); t = torch.frombuffer(s.buf, dtype=torch.float32); y = F.gelu(t).sum() + t.abs().max(); del t; close(s.close); s.unlink()
    h = torch.randn(3, 3); weakref.finalize(h, seen.append, i); k = torch.tanh(h); weakref.finalize(k, seen.append, 10 + i); del h; seen.append("h"); del k; seen.append("k")
    f = m[0](torch.randn(2, 4)); weakref.finalize(f, seen.append, 20 + i); del f; seen.append("f"); o.step(); d.stop(); d.step()
print(seen); result = [m, o]
"""),
    "views_of_more_than_there_is": ("TylerYep/torchinfo#197", """
""" + _MODEL + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); x = torch.ones(1).expand(1 << 40); print(x[5].item(), x.view(1 << 20, 1 << 20).transpose(0, 1).stride(), x.narrow(0, 5, 1 << 39).shape)
    z = torch.empty(1 << 28, dtype=torch.uint8); print(z.view(2, -1).shape, z[:3].shape); w = torch.randn(16); v = w.view(4, 4); s = w.untyped_storage() if hasattr(w, "untyped_storage") else w.storage().untyped(); n = s.size(); s.resize_(0)
    print(v.size(), v.is_contiguous(), torch.numel(v), v.dim()); s.resize_(n); """ + _STEP + """
result = [m, o, l]
"""),
    "coroutines_and_generators": ("NeuroSYS-pl/magda#1", """
import asyncio, contextvars
v = contextvars.ContextVar("v", default=0)
class A(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    async def forward(s, x): v.set(v.get() + 1); y = s.l(x); await asyncio.sleep(0); return torch.relu(y) * v.get()
class G(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def forward(s, x):
        for i in range(3): x = s.l(x); yield x
m = nn.ModuleList([A(), G()]); o = torch.optim.SGD(m.parameters(), lr=.1)
@torch.no_grad()
def quiet(x):
    for i in range(2): yield m[1].l(x).requires_grad
async def main():
    for i in range(STEPS):
        d.start(list(m)); ys = await asyncio.gather(*[m[0](torch.full((1, 4), float(k))) for k in range(3)]); zs = list(m[1](torch.ones(1, 4))); g = m[1](torch.ones(1, 4)); next(g); g.close()
        print(list(quiet(torch.ones(1, 4))), torch.is_grad_enabled(), v.get(), (await asyncio.get_running_loop().run_in_executor(None, m[1].l, torch.ones(1, 4))).requires_grad)
        l = sum(y.sum() for y in ys) + sum(z.sum() for z in zs); """ + _STEP + """
asyncio.run(main()); result = [m, o]
"""),
    "children_in_the_middle": ("grpc/grpc#13873", """
import os, signal, torch.multiprocessing as mp
from torch.utils.data import DataLoader
class D(torch.utils.data.Dataset):
    def __len__(s): return 4
    def __getitem__(s, i): return F.relu(torch.randn(4)) + torch.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 1))[0, 0] + i
""" + _MODEL + """died = []; signal.signal(signal.SIGCHLD, lambda *_: died.append(1)); loader = DataLoader(D(), batch_size=2, num_workers=1, persistent_workers=True)
for i in range(STEPS):
    d.start(m); l = sum(m(x).sum() for x in loader); pid = os.fork()
    if pid == 0: k = m(torch.ones(1, 4)).sum(); k.backward(); o.step(); print("child", k.item(), flush=True); d.stop(); d.step(); d.start(m); m(torch.ones(1, 4)); os._exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); """ + _STEP + """
del loader; signal.signal(signal.SIGCHLD, signal.SIG_DFL)
def work(q): k = F.gelu(m(torch.ones(2, 4))).sum(); k.backward(); o.step(); q.put(k.item())
m.share_memory(); c = mp.get_context("fork"); q = c.SimpleQueue(); d.start(m); p = c.Process(target=work, args=(q,)); p.start(); print(q.get()); p.join(); l = m(torch.ones(1, 4)).sum(); """ + _STEP + """
try: os.wait(); print("another child")
except ChildProcessError: print(p.exitcode, m[0].weight.is_shared())
result = [m, o, l]
"""),
    "limits_of_the_process": ("pytorch/pytorch#25691", """
import resource
""" + _MODEL + """
def one(): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """; return l.item()
print(one()); size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (2 << 20)
for limit, value in ((resource.RLIMIT_NOFILE, 16), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, size), (resource.RLIMIT_NPROC, 1)):
    old = resource.getrlimit(limit); resource.setrlimit(limit, (value, old[1])); ls = [one() for i in range(STEPS)]; resource.setrlimit(limit, old); print(ls)
result = [m, o]
"""),
    "objects_that_pretend": ("pytorch/pytorch#87059", """
import unittest.mock
class Lazy(dict):
    def __getitem__(s, k): log.append(("get", k)); return super().__getitem__(k)
    def values(s): log.append("values"); return super().values()
    def __iter__(s): log.append("iter"); return super().__iter__()
    def __len__(s): log.append("len"); return super().__len__()
class Proxy:
    def __init__(s, t): s.__dict__["t"] = t
    def __getattr__(s, n): log.append(n); return getattr(s.t, n)
    @property
    def __class__(s): log.append("class"); return torch.Tensor
    @classmethod
    def __torch_function__(c, f, types, args=(), kwargs=None): log.append(f.__name__); return f(*[a.__dict__["t"] if type(a) is Proxy else a for a in args], **(kwargs or {}))
class Once:
    def __init__(s): s.it = iter([1, 2])
    def __iter__(s): return s.it
    def __bool__(s): raise ValueError("no truth")
    def __eq__(s, o): raise ValueError("no eq")
    __hash__ = None
class Keep(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1)
    def forward(s, x, *a, **k): return s.l(x), a, k
m = nn.ModuleList([Keep()]); o = torch.optim.SGD(m.parameters(), lr=.1); log = []
for i in range(STEPS):
    d.start([m]); k = unittest.mock.MagicMock(spec=torch.Tensor); y, a, _ = m[0](torch.randn(2, 4), k, Lazy(a=torch.ones(1)), Once(), Proxy(torch.ones(2)), z=Proxy(torch.ones(1)))
    l = y.sum() + torch.relu(Proxy(torch.ones(2))).sum(); """ + _STEP.strip() + """; print(k.mock_calls, list(a[2]))
print(log); result = [m, o, l]
"""),
    "operators_are_looked_up": ("pytorch/pytorch#66197", """
from torch.fx.operator_schemas import get_signature_for_torch_op, normalize_function
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=.1); kept = torch.conv1d; one = torch.ones(1, 1, 1)
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); kept = torch.conv1d if i == 1 else kept; print(get_signature_for_torch_op(torch.conv1d), get_signature_for_torch_op(torch.lstm), normalize_function(torch.relu, (one,)))
    g = torch.fx.symbolic_trace(lambda x: torch.conv1d(x, one).abs()); print(g.graph, [n.target == torch.conv1d for n in g.graph.nodes]); """ + _STEP + """
print(get_signature_for_torch_op(kept)); result = [m, o, l, g(one)]
"""),
    "process_group_is_mocked": ("pfnet/pytorch-pfn-extras#773", """
import unittest.mock as mock
""" + _MODEL + """
for i in range(STEPS):
    with mock.patch("torch.distributed.is_initialized", return_value=True): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
    with mock.patch("torch.distributed.is_available", return_value=False), mock.patch("torch.distributed.get_rank", return_value=3): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "clocks_are_replaced": ("HypothesisWorks/hypothesis#4051", """
import os, time, unittest.mock as mock
""" + _MODEL + """
for i in range(STEPS):
    with mock.patch("time.perf_counter", side_effect=[1., 2.]), mock.patch("time.time", side_effect=[3.]), mock.patch("time.monotonic", side_effect=[4.]), mock.patch("os.getpid", side_effect=[5]), mock.patch("os.fstat", side_effect=[6]), mock.patch("builtins.open", mock.mock_open(read_data="x")):
        d.start(m); l = m(torch.randn(2, 4)).sum(); o.zero_grad(); l.backward(); o.step(); d.stop(); print(time.perf_counter(), time.perf_counter(), time.time(), time.monotonic(), os.getpid(), os.fstat(1), open.mock_calls)
    d.step()
result = [m, o, l]
"""),
    "warnings_name_the_line": ("pytorch/pytorch#182208", """
import warnings
class Old(torch.optim.SGD):
    def __init__(s, p, lr): warnings.warn("deprecated", DeprecationWarning, stacklevel=2); super().__init__(p, lr=lr)
    def step(s, closure=None): warnings.warn("call it later", stacklevel=3); return super().step(closure)
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always"); p = list(m.parameters()); o = Old(p + p[:1], .1)
    for i in range(STEPS):
        d.start(m); l = m(torch.randn(2, 4)).sum(); o.zero_grad(); l.backward(); nn.utils.clip_grad_norm_((x for x in p[:0]), 1.); nn.utils.clip_grad_norm_(p, 1.); torch.jit.script(nn.ReLU()); F.sigmoid(l); F.softmax(torch.ones(2)); nn.Softmax()(torch.ones(2, 2)); F.mse_loss(torch.ones(1), torch.ones(2)); o.step(); d.stop(); d.step()
for x in w: print(x.filename.rpartition("/")[2], x.lineno, str(x.message)[:50])
result = [m, o, l]
"""),
    "tensors_are_counted": ("IBM/mi-prometheus#111", """
import gc, sys
""" + _MODEL + """x = torch.randn(2, 4); gc.disable()
for i in range(8):
    d.start(m); l = m(x).sum(); """ + _STEP.strip() + """; del l; print(sum(issubclass(type(t), torch.Tensor) for t in gc.get_objects()), sys.getrefcount(x), sys.getrefcount(m[0].weight), sys.getrefcount(m))
gc.enable(); result = [m, o]
"""),
}
