# SPDX-License-Identifier: Apache-2.0
"""Further programs as described in programs.py."""

from __future__ import annotations

_STEP = "o.zero_grad(); l.backward(); o.step(); d.stop(); d.step()\n"
_SGD = "o = torch.optim.SGD(m.parameters(), lr=.1)\n"

MORE: dict[str, tuple[str, str]] = {
    "hooked_and_copied": ("ultralytics/ultralytics#10273", """
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """seen = []
for i in range(STEPS):
    hs = [s.register_forward_hook(lambda s, a, y: seen.append(type(s).__name__)) for s in m.modules()]
    d.start(m); l = m(torch.randn(2, 4)).sum(); [h.remove() for h in hs]; c = copy.deepcopy(m); l = l + c(torch.ones(1, 4)).sum(); """ + _STEP + """
    print([len(s._forward_hooks) + len(s._forward_pre_hooks) + len(s._backward_hooks) for s in c.modules()])
print(seen); result = [m, o, c]
"""),
    "forward_is_a_partial": ("huggingface/accelerate#1971", """
import functools
def around(module, *a, **k): return module._old(*a, **k) * 2
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); m[0]._old = m[0].forward
m[0].forward = functools.update_wrapper(functools.partial(around, m[0]), m[0]._old); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
    print(type(m[0].forward).__name__, m[0].forward.__name__, type(m[1].forward).__name__, "forward" in vars(m[1]))
result = [m, o, l]
"""),
    "signature_of_forward": ("huggingface/diffusers#14135", """
import inspect
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1)
    def forward(s, hidden_states, timestep=1, *, scale: float = 2.): return s.l(hidden_states) * timestep * scale
m = M(); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4), scale=1.).sum(); print(inspect.signature(m.forward), inspect.signature(m), M.forward.__qualname__, M.__call__ is nn.Module.__call__); """ + _STEP + """
result = [m, o, l]
"""),
    "hooks_with_keywords_and_in_front": ("pytorch/pytorch#89389", """
seen = []
m = nn.Linear(4, 1); """ + _SGD + """
new = hasattr(m, "_forward_hooks_with_kwargs")
def pre(s, a, k): seen.append(("pre", sorted(k))); return a, k
def post(s, a, k, y): seen.append(("post", sorted(k))); return y + 1
for i in range(STEPS):
    d.start(m)
    h = [m.register_forward_pre_hook(pre, with_kwargs=True, prepend=True), m.register_forward_hook(post, with_kwargs=True, prepend=True)] if new else []
    l = m(input=torch.randn(2, 4)).sum(); [x.remove() for x in h]; """ + _STEP + """
print(seen); result = [m, o, l]
"""),
    "hooks_that_are_always_called": ("pytorch/pytorch#104278", """
seen = []
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1)
    def forward(s, x):
        if len(x) == 3: raise ValueError("three")
        return s.l(x)
m = M(); """ + _SGD + """
if hasattr(m, "_forward_hooks_always_called"): m.register_forward_hook(lambda s, a, y: seen.append(y is None), always_call=True)
for i in range(STEPS):
    d.start(m)
    try: m(torch.ones(3, 4))
    except ValueError as e: seen.append(str(e))
    l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(seen); result = [m, o, l]
"""),
    "forward_replaced_in_a_step": ("pytorch/pytorch#167400", """
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    d.start(m); old = m[0].forward; l = m(torch.ones(2, 4)).sum(); m[0].forward = lambda x: old(x) * 3; l = l + m(torch.ones(2, 4)).sum(); del m[0].forward
    l = l + m(torch.ones(2, 4)).sum(); """ + _STEP + """
    print("forward" in vars(m[0]), m[0].forward.__func__ is nn.Linear.forward)
result = [m, o, l]
"""),
    "wrapped_forward": ("pytorch/pytorch#100733", """
import functools
m = nn.Linear(5, 5); """ + _SGD + """old = m.forward
@functools.wraps(old)
def new(*a, **k): return old(*a, **k)
m.forward = new
f = torch.compile(m, backend="eager") if hasattr(torch, "compile") and torch.__version__ > "2" else m
for i in range(STEPS): d.start(m); l = f(torch.randn(1, 5)).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "subclass_in_autograd_hooks": ("pytorch/pytorch#167223", """
log = []
class My(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        log.append(getattr(f, "__name__", "?")); return super().__torch_function__(f, types, args, kwargs or {})
for i in range(STEPS):
    x = torch.ones(3).as_subclass(My).requires_grad_(); m = nn.Linear(3, 1)
    x.register_hook(lambda g: log.append(type(g).__name__) or g * 2)
    d.start(m); m(x).exp().sum().backward(); d.stop(); d.step(); log.append(x.grad.sum().item().hex())
print(log); result = [m]
"""),
    "subclass_keeps_its_fields": ("pytorch/pytorch#28361", """
class My(torch.Tensor): field = "Kartoffel"
class Named(nn.Parameter): pass
m = nn.Linear(3, 3); m.weight = Named(m.weight.data); m.weight.tag = "w"; """ + _SGD + """
for i in range(STEPS):
    d.start(m); x = torch.ones(2, 3).as_subclass(My); y = torch.relu(m(x) + 1); print(type(x).__name__, type(y).__name__, getattr(y, "field", None), type(m.weight).__name__, m.weight.tag)
    l = y.sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "wrapper_subclass": ("pytorch/pytorch#73459", """
from torch.utils._pytree import tree_map
log = []
class W(torch.Tensor):
    @staticmethod
    def __new__(cls, t): return torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype, requires_grad=t.requires_grad)
    def __init__(s, t): s.t = t
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, f, types, args=(), kwargs=None):
        log.append(str(f)); un = lambda e: e.t if isinstance(e, W) else e
        return f(*tree_map(un, args), **tree_map(un, kwargs or {}))
m = nn.Linear(3, 3); """ + _SGD + """
for i in range(STEPS): d.start(m); l = m(torch.add(W(torch.ones(2, 3)), 1)).sum() + torch.mul(W(torch.ones(1)), 2).sum(); """ + _STEP + """
print(log); result = [m, o, l]
"""),
    "dispatch_mode": ("pytorch/pytorch#111014", """
from torch.utils._python_dispatch import TorchDispatchMode
log = []
class Log(TorchDispatchMode):
    def __torch_dispatch__(s, f, types, args=(), kwargs=None): log.append(str(f)); return f(*args, **(kwargs or {}))
m = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    d.start(m)
    with Log(): l = m(torch.randn(2, 4)).sum(); l.backward()
    l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(log); result = [m, o, l]
"""),
    "modes_and_exceptions": ("pytorch/pytorch#182317", """
from torch.overrides import TorchFunctionMode
class Refuses(TorchFunctionMode):
    def __torch_function__(s, f, types, args=(), kwargs=None):
        if getattr(f, "__name__", "") == "tanh": raise RuntimeError("no tanh")
        return f(*args, **(kwargs or {}))
depth = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
m = nn.Linear(4, 1); """ + _SGD + """
for i in range(STEPS):
    d.start(m)
    try:
        with Refuses(), Refuses(): torch.tanh(m(torch.ones(1, 4)))
    except RuntimeError as e: print(e, depth())
    outer = Refuses(); outer.__enter__(); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
    outer.__exit__(None, None, None); print(depth())
result = [m, o, l]
"""),
    "step_is_overridden": ("pytorch/pytorch#21460", """
import warnings, functools
m = nn.Linear(4, 1); """ + _SGD + """s = torch.optim.lr_scheduler.StepLR(o, 1, .5); plain = o.step
@functools.wraps(plain)
def step(*a, **k): return plain(*a, **k)
for i in range(STEPS):
    if i == 1: o.step = step
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always"); d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """; s.step()
    print([str(x.message)[:60] for x in w], s.get_last_lr(), o.step is step)
result = [m, o, l]
"""),
    "scheduler_first": ("ultralytics/yolov5#313", """
import warnings
m = nn.Linear(4, 1); """ + _SGD + """s = torch.optim.lr_scheduler.LambdaLR(o, lambda e: .9 ** e)
for i in range(STEPS):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always"); d.start(m); s.step(); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """
    print([str(x.message)[:70] for x in w])
result = [m, o, l]
"""),
    "scaler_skips_a_step": ("pytorch/pytorch#67590", """
m = nn.Linear(4, 1); """ + _SGD + """
scaler = torch.amp.GradScaler("cpu", init_scale=4.) if hasattr(getattr(torch, "amp", None), "GradScaler") else None
for i in range(4):
    d.start(m); l = m(torch.full((2, 4), float("inf") if i == 1 else 1.)).sum(); o.zero_grad()
    if scaler: scaler.scale(l).backward(); scaler.step(o); scaler.update(); print(scaler.get_scale())
    d.stop(); d.step()
result = [m, o]
"""),
    "accumulated_gradients": ("huggingface/accelerate#2828", """
m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(.5), nn.Linear(4, 1)); o = torch.optim.AdamW(m.parameters())
for i in range(6):
    d.start(m); l = m(torch.randn(2, 4)).mean() / 3; l.backward()
    if i % 3 == 2: o.step(); o.zero_grad(); d.stop(); d.step()
result = [m, o, l]
"""),
    "optimizer_in_backward": ("pytorch/pytorch#107063", """
m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)); os = {p: torch.optim.SGD([p], lr=.1) for p in m.parameters()}; seen = []
def hook(p): os[p].step(); os[p].zero_grad(); seen.append(p.grad is None)
if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"): [p.register_post_accumulate_grad_hook(hook) for p in m.parameters()]
for i in range(STEPS): d.start(m); m(torch.randn(2, 4)).sum().backward(); d.stop(); d.step(); print([p.grad is None for p in m.parameters()])
print(seen); result = [m]
"""),
    "hooks_on_the_accumulation": ("BaguaSys/bagua#476", """
m = nn.Linear(4, 1); """ + _SGD + """seen = []; kept = []
for n, p in m.named_parameters():
    a = p.expand_as(p).grad_fn.next_functions[0][0]; kept.append(a); a.register_hook(lambda *_, n=n: seen.append(n))
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(seen); result = [m, o, l]
"""),
    "update_in_a_gradient_hook": ("OpenLMLab/LOMO#41", """
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
def fuse(p):
    def hook(g): p.data.add_(g, alpha=-.1); return g * 0
    p.register_hook(hook)
[fuse(p) for p in m.parameters()]
for i in range(STEPS): d.start(m); m(torch.randn(2, 4)).sum().backward(); d.stop(); d.step()
result = [m]
"""),
    "fx_with_hooks": ("pytorch/vision#5193", """
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """seen = []
m[1].register_forward_hook(lambda s, a, y: seen.append(tuple(y.shape)))
for i in range(STEPS):
    d.start(m); g = torch.fx.symbolic_trace(m); l = g(torch.randn(2, 4)).sum() + m(torch.randn(1, 4)).sum(); c = copy.deepcopy(g); l = l + c(torch.ones(1, 4)).sum(); """ + _STEP + """
    print([n.name for n in g.graph.nodes], g.code)
print(len(seen)); result = [m, o, l]
"""),
    "toggled_parameters": ("Lightning-AI/pytorch-lightning#5771", """
g, c = nn.Linear(2, 4), nn.Linear(4, 1); og, oc = torch.optim.SGD(g.parameters(), lr=.1), torch.optim.Adam(c.parameters())
for i in range(STEPS):
    d.start([g, c])
    for on, off, o, sign in ((g, c, og, -1), (c, g, oc, 1)):
        off.requires_grad_(False); on.requires_grad_(True); l = sign * c(g(torch.randn(3, 2))).mean(); o.zero_grad(); l.backward(); o.step(); off.requires_grad_(True)
    d.stop(); d.step(); print([p.requires_grad for p in [*g.parameters(), *c.parameters()]])
result = [g, c, og, oc]
"""),
    "closure_with_two_backwards": ("Lightning-AI/pytorch-lightning#4618", """
m = nn.Linear(4, 1); o = torch.optim.Adam(m.parameters()); calls = []
def closure():
    calls.append(1); o.zero_grad(); l = m(torch.randn(3, 4)).square().mean(); l.backward(retain_graph=True); l.backward(); return l
for i in range(STEPS): d.start(m); l = o.step(closure=closure); d.stop(); d.step()
print(len(calls)); result = [m, o, l]
"""),
    "outputs_in_lists_and_dictionaries": ("pytorch/pytorch#87540", """
import warnings
class M(nn.Module):
    def __init__(s, how): super().__init__(); s.l, s.how = nn.Linear(4, 4), how
    def forward(s, x): y = s.l(x); return {"x": y, "n": None} if s.how else [y, (y * 2, "word")]
m = nn.ModuleList([M(0), M(1)]); """ + _SGD + """seen = []
[x.register_full_backward_hook(lambda s, gi, go: seen.append(len(go))) for x in m]
for i in range(STEPS):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always"); d.start(list(m)); a, b = m[0](torch.randn(2, 4)), m[1](torch.randn(2, 4)); l = (a[0] + a[1][0] + b["x"]).sum(); """ + _STEP.strip() + """
    print(type(a).__name__, type(b).__name__, sorted(b), a[1][1], [str(x.message)[:60] for x in w])
print(seen); result = [m, o, l]
"""),
    "output_is_an_object": ("huggingface/transformers#36508", """
from collections import OrderedDict
class Out(OrderedDict):
    def __getattr__(s, k): return s[k]
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def forward(s, x, return_dict=True): y = s.l(x); return Out(last_hidden_state=y, pooled=y.mean(1)) if return_dict else (y,)
class Top(nn.Module):
    def __init__(s): super().__init__(); s.b = M(); s.seen = None
    def forward(s, x): s.seen = s.b(x); return s.seen.last_hidden_state.sum() + s.b(x, return_dict=False)[0].sum()
m = Top(); """ + _SGD + """
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)); """ + _STEP.strip() + """; print(type(m.seen).__name__, list(m.seen), type(m.seen.pooled).__name__)
result = [o, l, [p for p in m.parameters()]]
"""),
    "layers_are_merged_in_between": ("huggingface/trl#370", """
class LoRA(nn.Module):
    def __init__(s, base): super().__init__(); s.base, s.a, s.b = base.requires_grad_(False), nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
    def forward(s, x): return s.base(x) + s.b(s.a(x))
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
for i in range(4):
    if i % 2 == 0: m[0] = LoRA(m[0])
    else: r = m[0]; n = nn.Linear(4, 4); n.weight.data = r.base.weight + r.b.weight.data @ r.a.weight.data; n.bias.data = r.base.bias.data.clone(); m[0] = n
    o = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=.1); d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """; print([n for n, _ in m.named_modules()])
result = [m, l]
"""),
    "saved_tensors_are_packed": ("pytorch/pytorch#198014", """
log = []
def pack(t): log.append(("p", tuple(t.shape))); return t.numpy().copy() if not t.requires_grad else t.detach().numpy().copy()
def unpack(a): log.append(("u", a.shape)); return torch.from_numpy(a)
m = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1)); """ + _SGD + """
for i in range(STEPS):
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(log); result = [m, o, l]
"""),
    "averaged_weights": ("pytorch/pytorch#30559", """
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn
m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)); """ + _SGD + """a, s = AveragedModel(m), SWALR(o, swa_lr=.05)
for i in range(STEPS): d.start(m); l = m(torch.randn(3, 4)).sum(); """ + _STEP.strip() + """; a.update_parameters(m); s.step()
update_bn([torch.randn(3, 4)], a); result = [m, o, a]
"""),
    "models_are_freed": ("pytorch/pytorch#76434", """
import gc, weakref
for i in range(STEPS):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """    d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
    r = [weakref.ref(x) for x in (m, m[0], l, m[0].weight, o)]; digest = [p.detach().clone() for p in m.parameters()]; del m, l, o; gc.collect()
    print([x() is None for x in r[:4]] if i < STEPS - 1 else "")
result = digest
"""),
    "hook_of_the_module_itself": ("pytorch/pytorch#46386", """
class Own(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1); s.n = 0; s.l.register_forward_hook(s.count); s.which = s.forward
    def count(s, *a): s.n += 1
    def forward(s, x): return s.l(x)
m = Own(); """ + _SGD + """
for i in range(STEPS): d.start(m); l = m.which(torch.randn(2, 4)).sum() + m(torch.ones(1, 4)).sum(); """ + _STEP.strip() + """; print(m.n)
result = [m, o, l]
"""),
    "create_graph_with_backward_hooks": ("pytorch/pytorch#82528", """
import warnings
m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)); """ + _SGD + """seen = []
m[0].register_full_backward_hook(lambda s, gi, go: seen.append(len(gi)))
for i in range(STEPS):
    d.start(m); x = torch.randn(2, 4, requires_grad=True); g, = torch.autograd.grad(m(x).sum(), x, create_graph=True); l = g.square().sum(); """ + _STEP + """
print(seen); result = [m, o, l]
"""),
    "reentrant_checkpoint": ("pytorch/pytorch#84413", """
from torch.utils.checkpoint import checkpoint
m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(.5), nn.Linear(4, 1)); """ + _SGD + """
def run(x, held={}): y = m(x); held["y"] = y; return y
for i in range(STEPS): d.start(m); l = checkpoint(run, torch.randn(2, 4, requires_grad=True), use_reentrant=True).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "grad_cam": ("jacobgil/pytorch-grad-cam#88", """
m = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)); kept, grads = [], []
def save(s, a, y): kept.append(y.detach()); y.register_hook(lambda g: grads.insert(0, g.detach()))
h = m[0].register_forward_hook(save)
for i in range(STEPS):
    d.start(m); m.zero_grad(); m(torch.randn(1, 1, 4, 4))[0, 1].backward(retain_graph=True); d.stop(); d.step()
h.remove(); result = [m, kept, grads]
"""),
    "functionalized": ("pytorch/pytorch#110337", """
def f(x): y = x.clone(); y.add_(1); y.mul_(2); return torch.relu(y)
m = nn.Linear(3, 3)
for i in range(STEPS):
    d.start(m); x = torch.arange(3.); y = torch.func.functionalize(f)(x) if hasattr(torch, "func") else f(x)
    z = torch.func.functional_call(m, {k: v * 2 for k, v in m.named_parameters()}, (x,)) if hasattr(torch, "func") else m(x); z.sum().backward(); d.stop(); d.step()
result = [m, y, z]
"""),
    "copies_of_tensors": ("pytorch/pytorch#3307", """
m = nn.Linear(3, 3)
for i in range(STEPS):
    d.start(m); m(torch.ones(1, 3)).sum().backward(); c, t = copy.deepcopy(m.weight), copy.copy(m.weight); b = pickle.loads(pickle.dumps(m.weight))
    try: copy.deepcopy(m(torch.ones(1, 3)))
    except RuntimeError as e: print(str(e)[:50])
    d.stop(); d.step(); print(type(c).__name__, c.grad is None, type(t).__name__, b.grad is None, c.is_leaf, b.requires_grad)
result = [m, c, b]
"""),
    "result_kept_on_the_module": ("pytorch/pytorch#54580", """
class K(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b, s.x = nn.Linear(2, 2), nn.Linear(2, 1), None
    def forward(s, x): s.x = s.a(x); return s.b(s.x)
m = K(); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(3, 2)).sum()
    try: copy.deepcopy(m)
    except RuntimeError as e: print(str(e)[:50])
    m.x.retain_grad(); """ + _STEP + """    print(m.x.grad.shape, m.x.grad_fn.name(), [f[0].name() for f in m.x.grad_fn.next_functions if f[0]])
result = [o, l, list(m.parameters())]
"""),
    "own_item_access": ("pytorch/pytorch#161886", """
m = nn.Linear(2, 2); """ + _SGD + """seen = []; plain = torch.Tensor.__getitem__
for i in range(STEPS):
    d.start(m); torch.Tensor.__getitem__ = lambda s, k: seen.append(k) or plain(s, k); l = m(torch.ones(2, 2))[0].sum() + m(torch.ones(2, 2))[0, 1]; torch.Tensor.__getitem__ = plain
    l = l + m(torch.ones(2, 2))[1].sum(); """ + _STEP + """
    print(torch.Tensor.__getitem__ is plain)
print(seen); result = [m, o, l]
"""),
    "own_getattr": ("Lightning-AI/pytorch-lightning#19307", """
seen = []
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); s.output = nn.Linear(4, 1); s.custom = {"scale": 2.}
    def __getattr__(s, n):
        try: return super().__getattr__(n)
        except AttributeError:
            seen.append(n)
            if n in s.__dict__.get("custom", {}): return s.__dict__["custom"][n]
            raise
    def forward(s, x): return s.output(s.l(x)) * s.scale
m = M(); """ + _SGD + """seen.clear()
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(seen); result = [list(m.parameters()), o, l]
"""),
    "scripted_with_hooks": ("pytorch/pytorch#34329", """
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1)
    def forward(s, x): return torch.relu(s.l(x)) + 2
m = M(); """ + _SGD + """j = torch.jit.script(m)
for i in range(STEPS):
    d.start(m); l = j(torch.randn(2, 4)).sum() + m(torch.randn(2, 4)).sum(); k = torch.jit.script(M()); l = l + k(torch.ones(1, 4)).sum() * 0; """ + _STEP + """
    f = io.BytesIO(); torch.jit.save(j, f); f.seek(0); print(torch.jit.load(f).code)
result = [m, o, l]
"""),
    "patched_call": ("moskomule/anatome#21", """
seen = []; plain = nn.Module.__call__
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); """ + _SGD + """
def call(s, *a, **k): seen.append(type(s).__name__); return plain(s, *a, **k)
for i in range(STEPS):
    if i == 1: nn.Module.__call__ = call
    d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
    print(nn.Module.__call__ is (call if i else plain))
nn.Module.__call__ = plain; print(seen); result = [m, o, l]
"""),
    "versions_of_tensors": ("pytorch/pytorch#30291", """
m = nn.Linear(4, 4); """ + _SGD + """
for i in range(STEPS):
    d.start(m); x = torch.ones(2, 4); y = m(x); z = torch.exp(y); v = [t._version for t in (x, y, z, m.weight)]; z.add_(1)
    try: z.sum().backward()
    except RuntimeError as e: print(str(e)[-150:-90])
    l = m(x).sum(); """ + _STEP + """    print(v, z._version, m.weight._version, x.data_ptr() == x.detach().data_ptr())
result = [m, o, l]
"""),
    "graph_is_walked": ("pytorch/pytorch#92330", """
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 1)); """ + _SGD + """
def walk(n, out): out.append(n.name()); [walk(f, out) for f, _ in n.next_functions if f is not None]; return out
for i in range(STEPS): d.start(m); l = (m(torch.randn(3, 4)) * torch.ones(3, 1)).sum(); print(walk(l.grad_fn, [])); """ + _STEP + """
result = [m, o, l]
"""),
    "pruned_weights": ("pytorch/pytorch#37138", """
from torch.nn.utils import prune
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); prune.random_unstructured(m[0], "weight", .5); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
    prune.l1_unstructured(m[0], "weight", 1) if i == 0 else None; print([type(h).__name__ for h in m[0]._forward_pre_hooks.values() if isinstance(h, prune.BasePruningMethod)], sorted(m.state_dict()))
prune.remove(m[0], "weight"); result = [m, o, l]
"""),
    "forked_random_state": ("fastai/fastai#2870", """
import random
m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(.5), nn.Linear(4, 1)); """ + _SGD + """g = torch.Generator().manual_seed(3)
for i in range(STEPS):
    d.start(m)
    with torch.random.fork_rng(devices=[]): torch.manual_seed(5); a = m(torch.randn(2, 4)).sum()
    l = a + m(torch.rand(2, 4, generator=g)).sum() + random.random(); """ + _STEP + """    print(torch.randperm(5).tolist(), torch.initial_seed(), random.randrange(100))
result = [m, o, l]
"""),
    "anomaly_mode": ("swivid/F5-TTS#790", """
import warnings
m = nn.Linear(4, 1); """ + _SGD + """
for i in range(STEPS):
    d.start(m)
    with warnings.catch_warnings(record=True) as w, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try: torch.sqrt(m(torch.zeros(1, 4)) * 0 - 0.).mul(0).sum().backward()
        except RuntimeError as e: print(str(e)[:60])
    print(len(w), torch.is_anomaly_enabled()); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "swapped_parameters": ("pytorch/pytorch#111747", """
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """new = hasattr(torch.__future__, "set_swap_module_params_on_conversion")
if new: torch.__future__.set_swap_module_params_on_conversion(True)
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4).to(m[0].weight.dtype)).sum(); """ + _STEP + """    del l; m.to(torch.float64 if i % 2 == 0 else torch.float32); print([p.dtype for p in m.parameters()])
    if new: d.start(m); w = nn.Parameter(torch.randn(4, 4).to(m[0].weight)); torch.utils.swap_tensors(m[0].weight, w); m(torch.ones(1, 4).to(w)).sum().backward(); d.stop(); d.step()
result = [m, o]
"""),
    "sharded_tensors_are_converted": ("pytorch/pytorch#122755", """
import importlib, tempfile
if torch.__version__ >= "2.5":
    import torch.distributed as dist
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel, RowwiseParallel
    with tempfile.TemporaryDirectory() as place:
        dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=0, world_size=1)
        m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)); parallelize_module(m, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}); """ + _SGD + """
        for i in range(STEPS):
            d.start(m); l = m(torch.randn(2, 4, dtype=m[0].bias.dtype)).sum(); """ + _STEP.strip() + """; del l; m.to(torch.float64 if i % 2 == 0 else torch.float32); print(type(m[0].weight).__name__, m[0].weight.dtype)
        result = [p.full_tensor() for p in m.parameters()]; dist.destroy_process_group()
"""),
    "quantized": ("pytorch/pytorch#37151", """
import warnings; warnings.simplefilter("ignore")
import torch.ao.quantization as q
class M(nn.Module):
    def __init__(s): super().__init__(); s.c, s.b, s.r, s.l = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Linear(8, 1)
    def forward(s, x): return s.l(s.r(s.b(s.c(x))).flatten(1))
m = M(); """ + _SGD + """
def one(): return m(torch.randn(3, 1, 4, 4)).sum()
d.start(m); l = one(); """ + _STEP + """n = copy.deepcopy(m); q.quantize_dynamic(m, {nn.Linear}, inplace=True); d.start(m); y = one(); d.stop(); d.step()
m = n; d.start(m); one(); d.stop(); d.step(); q.fuse_modules_qat(m, [["c", "b", "r"]], inplace=True); m.qconfig = q.get_default_qat_qconfig("fbgemm"); q.prepare_qat(m, inplace=True); """ + _SGD + """
for i in range(STEPS): d.start(m); l = one(); """ + _STEP + """
print(type(m.c).__name__, type(m.l).__name__); result = [list(m.parameters()), y, l]
"""),
    "states_of_modules_in_tuples": ("pytorch/pytorch#66813", """
class Slots(nn.Module):
    __slots__ = ("tag",)
    def __init__(s): super().__init__(); s.tag = "t"; s.l = nn.Linear(4, 1)
    def forward(s, x): return s.l(x)
class State(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1)
    def forward(s, x): return s.l(x)
    def __getstate__(s): return (1, s.__dict__.copy())
    def __setstate__(s, t): s.__dict__.update(t[1])
class Saves:
    def __reduce_ex__(s, p): print("mine"); return super().__reduce_ex__(p)
class Mixed(nn.Module, Saves):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1)
    def forward(s, x): return s.l(x)
m = nn.Sequential(); m.a, m.b, m.c = Slots(), State(), Mixed(); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = (m.a(torch.randn(2, 4)) + m.b(torch.ones(2, 4)) + m.c(torch.ones(2, 4))).sum(); o.zero_grad(); l.backward(); o.step()
    for x in (m.a, m.b, m.c): print([len(k._forward_hooks) for k in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x))])
    d.stop(); d.step(); [pickle.dumps(x) for x in (m.a, m.b, m.c)]
result = [m, o, l]
"""),
    "copies_by_their_class": ("pytorch/pytorch#80811", """
from torch.nn.utils import parametrize
class Own(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def forward(s, x): return s.l(x)
    def __deepcopy__(s, memo): n = Own.__new__(Own); memo[id(s)] = n; n.__dict__.update(copy.deepcopy(s.__dict__, memo)); return n
class Upper(nn.Module):
    def forward(s, x): return x.triu()
m = nn.Sequential(Own(), nn.Linear(4, 4)); parametrize.register_parametrization(m[1], "weight", Upper()); """ + _SGD + """kept = []
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); o.zero_grad(); l.backward(); o.step(); kept.append(copy.deepcopy(m)); y = kept[-1](torch.ones(1, 4)); d.stop(); d.step()
if hasattr(d, "close"): d.close()
for c in kept: r = pickle.loads(pickle.dumps(c[0])); print(torch.equal(r(torch.ones(1, 4)), c[0](torch.ones(1, 4))), c(torch.ones(1, 4)).shape)
result = [m, o, l, y, kept]
"""),
    "shallow_copies_share_hooks": ("pytorch/pytorch#128272", """
seen = []
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    d.start(m); c = copy.copy(m); k = copy.copy(m[0]); h = m[0].register_forward_hook(lambda s, a, y: seen.append(s is k))
    l = m(torch.randn(2, 4)).sum() + c(torch.ones(1, 4)).sum() + k(torch.ones(1, 4)).sum(); h.remove(); """ + _STEP + """    print(k._forward_hooks is m[0]._forward_hooks)
print(seen); result = [m, o, l]
"""),
    "operators_are_counted": ("pytorch/pytorch#195746", """
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    with torch.autograd.profiler.profile() as p: d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """
    print(sorted((e.key, e.count) for e in p.key_averages() if e.key.startswith("aten::")))
result = [m, o, l]
"""),
    "hooks_that_came_with_a_pickle": ("pytorch/pytorch#96224", """
from collections import OrderedDict
seen = []
def after(s, a, y): seen.append(tuple(y.shape))
def before(s, a): seen.append("before")
m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); """ + _SGD + """
for s in m: s._forward_hooks = OrderedDict((k, after) for k in range(300)); s._forward_pre_hooks = OrderedDict((k, before) for k in range(300))
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """; print(len(seen)); seen.clear()
result = [m, o, l]
"""),
    "methods_are_hidden_by_attributes": ("megvii-research/MSPN#1", """
class In(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); s.named_modules = {"l": s.l}; s.children = [s.l]; s.named_parameters = 1; s.named_buffers = None; s.train = s.eval = True; s.state_dict = {}
    def forward(s, x): return s.l(x)
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); s.k = In(); s.modules = [s.l]; s.parameters = [s.l.weight, s.l.bias]; s.apply = s.to = 1
    def forward(s, x): return s.k(torch.relu(s.l(x)))
m = M(); o = torch.optim.SGD(m.parameters, lr=.1)
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
result = [m.parameters, o, l]
"""),
    "methods_of_a_model_count_their_calls": ("iver56/torch-audiomentations#49", """
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); s.calls = []
    def forward(s, x): return s.l(x) * (1 + len(s.calls))
for name in ("parameters", "named_parameters", "modules", "named_modules", "named_buffers", "children", "state_dict"):
    def counted(s, *a, name=name, **k): s.calls.append(name); return getattr(nn.Module, name)(s, *a, **k)
    setattr(M, name, counted)
m = M(); o = torch.optim.SGD(m.l.parameters(), lr=.1)
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(m.calls); result = [list(m.l.parameters()), o, l]
"""),
    "scripted_classes_use_names_around": ("pytorch/pytorch#139661", """
import importlib, sys, warnings; warnings.simplefilter("ignore"); sys.path.insert(0, ".")
text = "import torch\\ndef scale(x: torch.Tensor) -> torch.Tensor: return x * 3\\n@torch.jit.script\\nclass Scaled:\\n    def __init__(self, x: torch.Tensor): self.x = scale(x)\\n    def get(self) -> torch.Tensor: return self.x + 1\\n"
text += "@torch.jit.script\\ndef scaled(x: torch.Tensor) -> torch.Tensor: return Scaled(x).get()\\n"
m = nn.Linear(4, 1); """ + _SGD + """
for i in range(STEPS):
    with open(f"scripted{i}.py", "w") as f: f.write(text)
    importlib.invalidate_caches(); d.start(m); l = importlib.import_module(f"scripted{i}").scaled(m(torch.randn(2, 4))).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "gradients_in_every_way": ("pytorch/pytorch#60268", """
import warnings
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    d.start(m); x = torch.randn(2, 4, requires_grad=True); y = m(x); z = m[0](x); z.retain_grad(); q = torch.ones(1, requires_grad=True)
    print(torch.autograd.grad(y.sum(), [x, q], retain_graph=True, allow_unused=True)[1]); g, = torch.autograd.grad(y.sum(), x, create_graph=True); (g.square().sum() + z.sum()).backward(inputs=[m[0].weight, z]); print(m[2].weight.grad, z.grad.sum())
    for f in (lambda: torch.autograd.grad(y.sum(), [q]), lambda: y.backward(), lambda: z.sum().backward() or z.sum().backward(), lambda: m(torch.ones(1, 4)).detach().backward()):
        try: f()
        except RuntimeError as e: print(str(e)[:90])
    with warnings.catch_warnings(record=True) as w: warnings.simplefilter("always"); print(y.grad, [str(x.message)[:40] for x in w])
    print(torch.autograd.gradgradcheck(lambda a: F.gelu(F.linear(a, torch.ones(3, 2, dtype=a.dtype))).sum(), torch.randn(2, 2, dtype=torch.double, requires_grad=True))); l = m(x).sum(); """ + _STEP + """
result = [m, o, x.grad]
"""),
    "gradient_modes_are_nested": ("facebookresearch/dinov2#472", """
class A(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    @torch.no_grad()
    def forward(s, x): return s.l(x)
class B(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    @torch.inference_mode()
    def forward(s, x): return s.l(x) + torch.relu(x)
class C(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b, s.l = A(), B(), nn.Linear(4, 1)
    def forward(s, x):
        with torch.no_grad(), torch.enable_grad(): y = s.l(x)
        z = s.b(x); print(z.is_inference(), z.requires_grad, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        try: s.l(z)
        except RuntimeError as e: print(str(e)[:60])
        return y + s.l(s.a(x)) + s.l(z.clone())
m = C(); """ + _SGD + """
for i in range(STEPS):
    d.start(m); torch.set_grad_enabled(False); torch.set_grad_enabled(True); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
    with torch.inference_mode(): d.start(m); y = m(torch.ones(1, 4)); d.stop()
    d.step(); print(y.is_inference(), m.l.weight.is_inference(), torch.is_grad_enabled())
result = [m, o, l]
"""),
    "ensemble_of_stacked_models": ("pytorch/pytorch#151561", """
ms = [nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Dropout(.5), nn.Linear(3, 1)) for _ in range(3)]; m = nn.ModuleList(ms); """ + _SGD + """y = j = torch.ones(1)
for i in range(STEPS):
    d.start(m); x = torch.randn(4, 3); l = ms[0](x).sum()
    if hasattr(torch, "func"):
        from torch.func import functional_call, hessian, jvp, stack_module_state, vmap
        b = copy.deepcopy(ms[0]).to("meta"); ps, bs = stack_module_state(ms); y = vmap(lambda p, q, x: functional_call(b, (p, q), (x,)), in_dims=(0, 0, None), randomness="different")(ps, bs, x)
        f = lambda x: torch.tanh(ms[1][0](x)).sum(); j = list(jvp(f, (x,), (torch.ones_like(x),))) + [hessian(f)(x[0])]; l = l + y.sum() + f(x)
    """ + _STEP + """
result = [m, o, y, j]
"""),
    "operators_of_the_program": ("pytorch/pytorch#168393", """
log = []; new = hasattr(torch.library, "custom_op")
if new:
    @torch.library.custom_op("harmless::scale", mutates_args=())
    def scale(x: torch.Tensor, a: float) -> torch.Tensor: log.append("scale"); return x * a
    scale.register_fake(lambda x, a: torch.empty_like(x)); scale.register_autograd(lambda c, g: (log.append("back") or g * c.a, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "a", inputs[1]))
    @torch.library.custom_op("harmless::add_one", mutates_args={"x"})
    def add_one(x: torch.Tensor) -> None: log.append("in place"); x.add_(1)
class Once(torch.autograd.Function):
    @staticmethod
    def forward(c, x): c.set_materialize_grads(False); return x * 2, x * 3
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(c, a, b): log.append((a is None, b is None)); return a * 2
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU()); """ + _SGD + """
for i in range(STEPS):
    d.start(m); y = m(torch.randn(2, 4))
    if new: y = torch.ops.harmless.scale(scale(y, 2.), .5); add_one(y.detach()); print(list(torch.library.opcheck(scale, (torch.ones(2), 2.)).values()))
    l = Once.apply(y)[0].sum(); """ + _STEP + """
print(log); result = [m, o, l]
"""),
    "optimizers_of_all_kinds": ("pytorch/pytorch#88446", """
log = []; result = []
class Slots(torch.optim.SGD): __slots__ = ("x",)
class Own(torch.optim.Optimizer):
    def __init__(s, p, base): super().__init__(p, {}); s.base = base; s.state = base.state; s.param_groups = base.param_groups
    def step(s, closure=None): log.append("own"); return s.base.step(closure)
for make in (torch.optim.Adam, torch.optim.NAdam, torch.optim.Rprop, torch.optim.Adagrad, lambda p: Slots(p, lr=.1), lambda p: Own(p, torch.optim.RMSprop(p)), lambda p: torch.optim.SparseAdam(p[:1])):
    m = nn.Sequential(nn.Embedding(4, 4, sparse=make.__name__ == "<lambda>" and len(result) == 12), nn.Linear(4, 1)); o = make(list(m.parameters())); result += [m, o] if len(result) < 12 else [m.state_dict()]
    if hasattr(o, "register_step_pre_hook"): o.register_step_pre_hook(lambda o, a, k: log.append((len(a), sorted(k)))); o.register_step_post_hook(lambda *_: log.append("post"))
    for i in range(2):
        d.start(m); l = m(torch.tensor([i, 1])).square().sum(); """ + _STEP + """        o.load_state_dict(pickle.loads(pickle.dumps(o.state_dict()))); print(type(o).step.__name__, "step" in vars(o), hasattr(type(o).step, "hooked"), m[0].weight.grad.is_sparse)
print(log)
"""),
}
