# SPDX-License-Identifier: Apache-2.0
"""Small programs, each for a public report on tools that observe PyTorch: name, report and code.

Each runs with torch, nn, F, copy, io, pickle and STEPS; `d` is the debugger, or an object whose start(), stop() and step() do nothing.
Its `result`, the states of random generators and its output are compared bit by bit.
"""

from __future__ import annotations

from kinds_programs import KINDS
from more_programs import MORE
from process_programs import PROCESS

_LOOP = """
for i in range(STEPS):
    d.start(m); l = {loss}; o.zero_grad(); l.backward(); o.step(); d.stop(); d.step()
result = [m, o, l]
"""
_MLP = "m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)); o = torch.optim.Adam(m.parameters())\n"


def _loop(made: str, loss: str = "m(torch.randn(3, 4)).square().mean()") -> str:
    return made + _LOOP.format(loss=loss)


PROGRAMS: dict[str, tuple[str, str]] = {
    "save_model": ("wandb/wandb#5573", """
m = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0); o = torch.optim.SGD(m.parameters(), lr=.1)
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 3, 8)).square().mean(); o.zero_grad(); l.backward(); o.step()
    f = io.BytesIO(); torch.save(m, f); d.stop(); d.step(); g = io.BytesIO(); torch.save(m, g)
    print(b"rankprobe" in f.getvalue(), b"rankprobe" in g.getvalue())
result = [m, o, l]
"""),
    "activation_is_compared": ("NVIDIA/Megatron-LM megatron/core/transformer/mlp.py", """
class MLP(nn.Module):
    def __init__(s, act=F.gelu): super().__init__(); s.a, s.b, s.act = nn.Linear(4, 8), nn.Linear(8, 4), act
    def forward(s, x):
        if s.act != F.gelu or s.act is not F.gelu or {F.gelu: 1}.get(s.act) is None: raise ValueError("only gelu and swiglu are supported")
        return s.b(s.act(s.a(x)))
""" + _loop("m = MLP(); o = torch.optim.SGD(m.parameters(), lr=.1)\n")),
    "own_function_in_torch": ("deepspeedai/DeepSpeed runtime/zero/linear.py", """
relu, linear = torch.relu, F.linear
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU()); o = torch.optim.SGD(m.parameters(), lr=.1)
try:
    torch.relu = lambda x: relu(x) * 10
    for i in range(STEPS):
        d.start(m)
        if i == 1: F.linear = lambda x, w, b=None: linear(x.bfloat16(), w.bfloat16(), b.bfloat16()).float()
        l = torch.relu(m(torch.full((2, 4), 1.2345))).sum(); o.zero_grad(); l.backward(); o.step(); d.stop(); print(l.item().hex()); d.step()
    print(float(torch.relu(torch.ones(1))), F.linear is not linear)
finally:
    torch.relu, F.linear = relu, linear
result = [m, o, l]
"""),
    "device_around_a_border": ("pytorch/pytorch#87990", """
m = nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), lr=.1)
for i in range(STEPS):
    if hasattr(torch.device, "__enter__"):
        with torch.device("meta"): d.start(m); print(torch.ones(1).device)
    else: d.start(m)
    l = m(torch.ones(1, 2)).sum(); o.zero_grad(); l.backward(); o.step(); print(torch.ones(1).device); d.stop(); d.step(); print(torch.ones(1).device)
result = [m, o, l]
"""),
    "default_device_in_a_step": ("pytorch/pytorch#133666", """
m = nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), lr=.1)
for i in range(STEPS):
    d.start(m)
    if hasattr(torch, "set_default_device"): torch.set_default_device("cpu"); torch.set_default_device(None)
    l = m(torch.ones(1, 2)).sum(); o.zero_grad(); l.backward(); o.step(); d.stop(); d.step(); print(torch._C._len_torch_function_stack())
result = [m, o, l]
"""),
    "counting_torch_function": ("pytorch/pytorch#34294", """
log = []
class Strict(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        log.append(getattr(f, "__name__", str(f))); return super().__torch_function__(f, types, args, kwargs or {})
m = nn.Linear(2, 2)
for i in range(STEPS):
    d.start(m); torch.relu(m(torch.mul(torch.ones(1, 2).as_subclass(Strict), 2))).sum().backward(); d.stop(); d.step()
print(log); result = [m]
"""),
    "counting_mode": ("pytorch/pytorch#57739", """
from torch.overrides import TorchFunctionMode
log = []
class Count(TorchFunctionMode):
    def __torch_function__(s, f, types, args=(), kwargs=None): log.append(getattr(f, "__name__", str(f))); return f(*args, **(kwargs or {}))
m = nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), lr=.1)
for i in range(STEPS):
    with Count(): d.start(m); F.relu(m(torch.ones(1, 2))).sum().backward()
    o.step(); d.stop(); d.step()
print(log); result = [m, o]
"""),
    "no_op_hooks_keep_the_object": ("pytorch/pytorch#61446", """
class Same(nn.Module):
    def forward(s, x): print(s.inner(x) is x); return s.last(s.inner(x))
    def __init__(s): super().__init__(); s.inner = nn.Identity(); s.last = nn.Linear(4, 1)
""" + _loop("m = Same(); o = torch.optim.SGD(m.parameters(), lr=.1)\n", "m(torch.randn(2, 4, requires_grad=True)).sum()")),
    "in_place_on_outputs": ("pytorch/pytorch#61519", _loop(
        "m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4), nn.ReLU(inplace=True)); o = torch.optim.SGD(m.parameters(), lr=.1)\n")),
    "in_place_on_a_view": ("f-dangel/singd#56", """
class V(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 4)
    def forward(s, x): y = s.a(x).unsqueeze(0).squeeze(0); y += x; torch.relu_(y[:, 1:]); return y
""" + _loop("m = V(); o = torch.optim.SGD(m.parameters(), lr=.1)\n")),
    "dunders_of_tensor": ("pytorch/pytorch#161886", """
m = nn.Linear(2, 2)
for i in range(STEPS):
    d.start(m); x = m(torch.ones(2, 2)); (x[0] + 1 - x[1]).sum().backward(); d.stop(); d.step()
    print(torch.Tensor([torch.tensor(False)]), len(torch.ones(3)), list(torch.ones(2)), bool(torch.ones(1)), -torch.ones(1), abs(-torch.ones(1)))
result = [m]
"""),
    "changed_after_the_call": ("nnsight#630", """
m = nn.Linear(4, 4).eval()
for i in range(STEPS):
    with torch.inference_mode(): d.start(m); y = m(torch.randn(2, 4)); y.add_(1); y.zero_() if i else None; d.stop(); d.step()
result = [m, y.clone()]
"""),
    "gan": ("soumith/dcgan.torch, wandb/wandb#279", """
g = nn.utils.spectral_norm(nn.Linear(2, 4)); c = nn.Linear(4, 1); og = torch.optim.Adam(g.parameters()); oc = torch.optim.SGD(c.parameters(), lr=.1)
for i in range(STEPS):
    d.start([g, c]); x = torch.randn(3, 4, requires_grad=True); gp = torch.autograd.grad(c(x).sum(), x, create_graph=True)[0].norm()
    oc.zero_grad(); (c(g(torch.randn(3, 2)).detach()).mean() - c(x).mean() + gp).backward(); oc.step()
    for p in c.parameters(): p.data.clamp_(-.1, .1)
    og.zero_grad(); (-c(g(torch.randn(3, 2))).mean()).backward(); og.step(); d.stop(); d.step()
result = [g, c, og, oc]
"""),
    "odd_dtypes": ("pytorch/pytorch#149002", """
m = nn.Linear(2, 2)
for i in range(STEPS):
    d.start(m); m(torch.ones(1, 2)).sum().backward()
    for t in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "half", "complex64", "bool", "uint8", "int8"):
        if hasattr(torch, t): torch.cat([torch.ones(2).to(getattr(torch, t))] * 2) if "float8" not in t else torch.ones(2).to(getattr(torch, t)).to(torch.float32)
    torch.ones(2, 2).to_sparse().to_dense(); torch.quantize_per_tensor(torch.ones(2), .1, 0, torch.quint8).dequantize(); d.stop(); d.step()
result = [m]
"""),
    "where_of_a_nan": ("pytorch/pytorch#160016", """
m = nn.Linear(4, 4)
for i in range(STEPS):
    d.start(m); x = m(torch.ones(2, 4)) * 0; torch.where(x > 0, torch.sqrt(x), torch.zeros(())).sum().backward(); d.stop(); d.step()
result = [m]
"""),
    "traced_and_scripted": ("pytorch/pytorch#20862", """
def f(x): return torch.relu(F.conv1d(x, torch.ones(1, 1, 1))) + torch.tanh(x)
m = nn.Linear(2, 2); x = torch.ones(1, 1, 3)
for i in range(STEPS):
    d.start(m); m(torch.ones(1, 2)).sum().backward()
    print(torch.fx.symbolic_trace(f).graph, torch.jit.trace(f, x).graph, torch.jit.script(f)(x)); d.stop(); d.step()
result = [m]
"""),
    "keyword_only_and_generators": ("captum#200", """
from collections import namedtuple
P = namedtuple("P", "a b")
class K(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def forward(s, *, x, extra=None): return P(s.l(x), [e for e in extra])
class M(nn.Module):
    def __init__(s): super().__init__(); s.k = K()
    def forward(s, x): y = s.k(x=x, extra=(i for i in range(2))); print(y.b); return y.a
""" + _loop("m = M(); o = torch.optim.SGD(m.parameters(), lr=.1)\n")),
    "errors_that_are_caught": ("pytorch/pytorch#131904", """
m = nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), lr=.1)
for i in range(STEPS):
    d.start(m)
    for bad in (lambda: m(torch.ones(2, 3)), lambda: torch.ones(2).view(3), lambda: torch.ones(1).exp(1), lambda: F.relu(), lambda: torch.add("x")):
        try: bad()
        except Exception as e: print(type(e).__name__, str(e)[:60])
    l = m(torch.ones(2, 4)).sum(); o.zero_grad(); l.backward(); o.step(); d.stop(); d.step()
result = [m, o, l]
"""),
    "checkpointing": ("pytorch/pytorch#96136", """
from torch.utils.checkpoint import checkpoint
class C(nn.Module):
    def __init__(s): super().__init__(); s.a, s.n, s.p = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(.5)
    def forward(s, x): return checkpoint(lambda x: s.p(s.n(s.a(x))), x, use_reentrant=False)
""" + _loop("m = C(); o = torch.optim.SGD(m.parameters(), lr=.1)\n")),
    "autocast": ("pytorch/pytorch#81296", """
m = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)); o = torch.optim.SGD(m.parameters(), lr=.1)
for i in range(STEPS):
    d.start(m)
    with torch.autocast("cpu", dtype=torch.bfloat16): l = m(torch.randn(2, 4)).float().mean()
    o.zero_grad(); l.backward(); nn.utils.clip_grad_norm_(m.parameters(), 1.); o.step(); d.stop(); d.step()
result = [m, o, l]
"""),
    "other_hooks": ("huggingface/accelerate#872", """
seen = []
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); o = torch.optim.SGD(m.parameters(), lr=.1)
h = m[0].register_forward_hook(lambda s, a, y: seen.append("f") or y * 2); m[1].register_full_backward_hook(lambda *a: seen.append("b"))
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); o.zero_grad(); l.backward(); o.step(); d.stop(); h.remove() if i == 1 else None; d.step()
print(seen); result = [m, o, l]
"""),
    "threads": ("pytorch/pytorch#42478", """
import threading
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)); out = {}
def work(i): g = torch.Generator().manual_seed(i); out[i] = torch.stack([m(torch.randn(2, 4, generator=g)).detach() for _ in range(5)])
for s in range(STEPS):
    d.start(m); ts = [threading.Thread(target=work, args=(i,)) for i in range(3)]; [t.start() for t in ts]; [t.join() for t in ts]; d.stop(); d.step()
result = [m, [out[i] for i in range(3)]]
"""),
    "deepcopy_ema": ("pytorch/pytorch#28594", """
m = nn.Sequential(nn.Linear(4, 4), nn.GELU()); o = torch.optim.AdamW(m.parameters()); ema = copy.deepcopy(m)
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).mean() + copy.deepcopy(m)(torch.ones(1, 4)).sum(); o.zero_grad(); l.backward(); o.step()
    for a, b in zip(ema.parameters(), m.parameters()): a.data.mul_(.9).add_(b.data, alpha=.1)
    d.stop(); d.step()
result = [m, o, ema, l]
"""),
    "frozen_and_replaced_optimizer": ("wandb/wandb#626", """
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
for phase in (m[1].parameters(), m.parameters()):
    o = torch.optim.SGD(phase, lr=.1, momentum=.9)
    for i in range(2): d.start(m); l = m(torch.randn(2, 4)).mean(); o.zero_grad(); l.backward(); o.step(); d.stop(); d.step()
result = [m, o, l]
"""),
    "forward_called_directly": ("sgl-project/sglang#26269", """
class LM(nn.Module):
    def __init__(s): super().__init__(); s.e, s.u, s.h = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 16)
    def forward(s, i): return s.h(torch.relu(s.u.forward(s.e(i))))
m = LM().eval()
with torch.no_grad():
    for i in range(6): d.start(m); y = m.forward(torch.tensor([[i, 1, 2]])); d.stop(); d.step()
result = [m, y]
"""),
    "lbfgs_closure": ("pytorch/pytorch#5953", """
m = nn.Linear(4, 1); o = torch.optim.LBFGS(m.parameters(), max_iter=3); x = torch.randn(8, 4)
def closure(): o.zero_grad(); l = (m(x) - 1).square().mean(); l.backward(); return l
for i in range(STEPS): d.start(m); l = o.step(closure); d.stop(); d.step()
result = [m, l]
"""),
    "custom_function": ("pytorch/pytorch#90481", """
class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x * x
    @staticmethod
    def backward(ctx, g): return g * 2 * ctx.saved_tensors[0]
""" + _loop("m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=.1)\n", "Sq.apply(m(torch.randn(2, 4))).sum()")),
    "parametrized_weights": ("pytorch/pytorch#103001", _loop(
        "m = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.utils.parametrizations.orthogonal(nn.Linear(4, 1))); o = torch.optim.SGD(m.parameters(), lr=.1)\n")),
    "rnn": ("pytorch/pytorch#101688", """
class R(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.LSTM(4, 3, 2, dropout=.5); s.g = nn.GRUCell(3, 3)
    def forward(s, x): y, _ = s.l(nn.utils.rnn.pack_sequence([x, x[:2]])); return s.g(nn.utils.rnn.pad_packed_sequence(y)[0][0])
""" + _loop("m = R(); o = torch.optim.SGD(m.parameters(), lr=.1)\n", "m(torch.randn(3, 4)).mean()")),
    "functional_transforms": ("pytorch/functorch#1107", """
m = nn.Linear(3, 3)
for i in range(STEPS):
    d.start(m); x = torch.randn(3); j = torch.autograd.functional.jacobian(lambda x: torch.tanh(m(x)), x); m(x).sum().backward()
    v = torch.func.vmap(torch.func.grad(lambda x: F.relu(x).sum()))(torch.randn(2, 3)) if hasattr(torch, "func") else j; d.stop(); d.step()
result = [m, j, v]
"""),
    "packed_arguments": ("pytorch/pytorch#34867", """
m = nn.Linear(4, 4); shape = (2, 2)
for i in range(STEPS):
    d.start(m); y = m(torch.ones(1, 4)); kept = y.abs; z = y.reshape(*shape).add(1, **{"alpha": 2}); w = kept() + sum(map(torch.Tensor.sqrt, [z * z])).reshape(1, 4)
    w.sum().backward(); d.stop(); d.step(); print(kept().shape)
result = [m, z, w]
"""),
    "pickled_functions": ("pytorch/pytorch#37703", """
m = nn.Linear(2, 2)
for i in range(STEPS):
    d.start(m); m(torch.ones(1, 2)).sum().backward()
    for f in (torch.tanh, F.relu, F.gelu, torch.add, torch.Tensor.add, torch.conv2d, torch.einsum): g = pickle.loads(pickle.dumps(f)); print(g == f, hash(g) == hash(f), copy.deepcopy(f) == f)
    d.stop(); d.step()
result = [m]
"""),
    "warnings_are_where_they_were": ("pytorch/pytorch#197858", """
import warnings
m = nn.Linear(2, 2)
for i in range(STEPS):
    d.start(m); m(torch.ones(1, 2)).sum().backward()
    with warnings.catch_warnings(record=True) as w: warnings.simplefilter("always"); F.softmax(torch.ones(2, 2)); print([(x.filename, x.lineno) for x in w])
    d.stop(); d.step()
result = [m]
"""),
    "tied_weights": ("pytorch/pytorch#121234", _loop(
        "m = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)); m[2].weight = m[0].weight; o = torch.optim.SGD(m.parameters(), lr=.1)\n")),
    "state_dict_and_load": ("pytorch/pytorch#2830", """
""" + _MLP + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(3, 4)).mean(); o.zero_grad(); l.backward(); o.step(); s = copy.deepcopy((m.state_dict(), o.state_dict())); d.stop(); d.step()
    m.load_state_dict(s[0]); o.load_state_dict(s[1])
result = [m, o, l]
"""),
    "signatures": ("beartype/jaxtyping#71", """
import inspect
m = nn.Linear(2, 2)
for i in range(STEPS):
    d.start(m); m(torch.ones(1, 2)).sum().backward()
    for f in (F.relu, F.dropout, F.cross_entropy, torch.einsum, torch.Tensor.norm): print(inspect.signature(f), f.__name__, len(inspect.getsource(f)))
    d.stop(); d.step()
result = [m]
"""),
    **MORE,
    **PROCESS,
    **KINDS,
}
# Programs of the default set.
DEFAULT = ("save_model", "activation_is_compared", "own_function_in_torch", "device_around_a_border", "counting_torch_function",
           "dunders_of_tensor", "gan", "errors_that_are_caught", "threads", "packed_arguments", "swapped_parameters")
