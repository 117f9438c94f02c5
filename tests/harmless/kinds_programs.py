# SPDX-License-Identifier: Apache-2.0
"""Programs as described in programs.py for PyTorch 2.13: tracing, export, packaging and counting, and classes that override standard
behaviour."""

from __future__ import annotations

_STEP = "o.zero_grad(); l.backward(); o.step(); d.stop(); d.step()\n"
_SGD = "o = torch.optim.SGD(m.parameters(), lr=.1)\n"
_MODEL = "m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); " + _SGD

KINDS: dict[str, tuple[str, str]] = {
    "models_are_exported": ("pytorch/pytorch#167329", """
import warnings; warnings.simplefilter("ignore")
class M(nn.Module):
    def __init__(s): super().__init__(); s.a, s.n, s.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1); s.register_buffer("k", torch.zeros(1))
    def forward(s, x, *, scale=1.): s.k.add_(1); return s.b(F.gelu(s.n(s.a(x)))) * scale
m = M(); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); e = torch.export.export(m, (torch.ones(3, 4),), {"scale": 2.}, dynamic_shapes={"x": {0: torch.export.Dim("b", min=2)}, "scale": None}); print(e.graph_module.code, e.graph_signature.buffers_to_mutate); f = io.BytesIO(); torch.export.save(e, f); f.seek(0); y = torch.export.load(f).module()(torch.ones(3, 4), scale=2.); """ + _STEP + """
    print(b"rankprobe" in f.getvalue(), sorted(x.meta.get("nn_module_stack", {}).keys().__str__() for x in e.graph.nodes)[-1][:60])
result = [m, o, l, y]
"""),
    "sizes_are_symbolic": ("pytorch/pytorch#140011", """
from torch.fx.experimental.proxy_tensor import make_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
def f(x): y = F.softmax(torch.relu(m(x)), 0); return y.reshape(-1, 1) * x.shape[0] + torch.cat([y, y])[: x.shape[0]]
for i in range(STEPS):
    d.start(m); g = make_fx(f, tracing_mode="symbolic", _allow_non_fake_inputs=True)(torch.randn(3, 4)); print(g.code, len(g.shape_env.guards)); k = make_fx(torch.relu, tracing_mode="fake")(torch.randn(3, 4)); print(k.code)
    env = ShapeEnv(); fm = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True); x = fm.from_tensor(torch.randn(5, 4), static_shapes=False)
    with fm: y = torch.relu(x + 1).sum(1); z = F.gelu(x); print(y.shape, len(env.guards), type(z).__name__)
    l = m(torch.randn(2, 4)).sum() + g(torch.ones(7, 4)).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "modules_have_a_hash_of_their_own": ("pytorch/pytorch#110959", """
log = []
class H(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); log.clear()
    def __hash__(s): log.append("hash"); return 7
    def __eq__(s, o): log.append("eq"); return s is o
    def forward(s, x): return s.l(x)
class U(nn.Module):
    __hash__ = None
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def __eq__(s, o): return True
    def forward(s, x): return s.l(x)
class C(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); s.n = 0
    def __call__(s, *a, **k): s.n += 1; return super().__call__(*a, **k) * s.n
    def __len__(s): log.append("len"); return 0
    def __bool__(s): log.append("bool"); return False
    def __setattr__(s, n, v): log.append(("set", n)); super().__setattr__(n, v)
    def __delattr__(s, n): log.append(("del", n)); super().__delattr__(n)
    def __repr__(s): log.append("repr"); return "C"
    def __dir__(s): log.append("dir"); return []
    def __iter__(s): log.append("iter"); return iter(())
    def __contains__(s, x): log.append("in"); return False
    def forward(s, x): return s.l(x)
m = nn.Sequential(); m.a = H(); m.c = C(); log.clear(); ps = [*m.a.l.parameters(), *m.c.l.parameters()]; o = torch.optim.SGD(ps, lr=.1); log.clear()
for i in range(STEPS): d.start(m); l = m.c(m.a(torch.randn(2, 4))).sum(); """ + _STEP + """
print(log); result = [ps, o, l]
"""),
    "modules_have_no_hash": ("pytorch/pytorch#133972", """
class U(nn.Module):
    __hash__ = None
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def __eq__(s, o): raise RuntimeError("no eq")
    def forward(s, x): return s.l(x)
class M(nn.Module):
    def __init__(s): super().__init__(); s.u = U(); s.k = nn.Linear(4, 1)
    def forward(s, x): return s.k(s.u(x))
m = M(); ps = [*m.u.l.parameters(), *m.k.parameters()]; o = torch.optim.SGD(ps, lr=.1)
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
result = [ps, o, l]
"""),
    "modules_are_nested_to_the_limit": ("pytorch/vision#5826", """
import sys
class N(nn.Module):
    def __init__(s, n): super().__init__(); s.n = N(n - 1) if n else nn.Linear(4, 4)
    def forward(s, x): return s.n(x)
m = N(40); """ + _SGD + """
def frames(): 
    f, n = sys._getframe(), 0
    while f: f, n = f.f_back, n + 1
    return n
sys.setrecursionlimit(frames() + 42 * 4 + 8)
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
sys.setrecursionlimit(1000); result = [m, o, l]
"""),
    "tracebacks_are_printed": ("pytorch/pytorch#42560", """
import traceback, sys
class A(nn.Module):
    def forward(s, x): raise KeyError("mine")
class B(nn.Module):
    def __init__(s): super().__init__(); s.a = A()
    def forward(s, x): return s.a(x)
m = nn.Sequential(nn.Linear(4, 4), B()); """ + _SGD + """
def told(f):
    try: f()
    except Exception as e: print(repr(e), repr(e.__cause__), repr(e.__context__), getattr(e, "__notes__", None)); print("".join(traceback.format_exception(type(e), e, e.__traceback__)))
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(c, x): return x.clone()
    @staticmethod
    def backward(c, g): raise ValueError("in backward")
for i in range(STEPS):
    d.start(m); told(lambda: m(torch.ones(2, 4))); told(lambda: m[0](torch.ones(2, 3))); told(lambda: torch.ones(2) + torch.ones(3)); told(lambda: Bad.apply(m[0](torch.ones(1, 4))).sum().backward()); told(lambda: torch.cat([1])); told(lambda: o.step(closure=lambda: 1 / 0)); l = m[0](torch.randn(2, 4)).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "methods_of_tensors_are_counted": ("sovrasov/flops-counter.pytorch#139", """
import types
calls = []
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
def spy(cls, n):
    f = getattr(cls, n)
    def g(s, *a, **k): calls.append(n); return f(s, *a, **k)
    setattr(cls, n, g); return lambda: setattr(cls, n, f)
undo = [spy(nn.Module, n) for n in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "_call_impl", "__setattr__", "__getattr__", "state_dict", "named_modules", "named_parameters", "children", "modules", "buffers", "train", "to", "apply", "_apply", "zero_grad", "requires_grad_", "__dir__", "extra_repr", "named_children", "_get_backward_hooks")]
undo += [spy(torch.optim.Optimizer, n) for n in ("state_dict", "add_param_group", "zero_grad", "register_step_post_hook")]
undo += [spy(torch.Tensor, n) for n in ("register_hook", "register_post_accumulate_grad_hook", "detach", "numpy", "cpu", "item", "tolist", "clone", "__reduce_ex__", "__deepcopy__", "storage", "data_ptr", "size", "dim", "stride", "numel", "is_contiguous", "element_size", "contiguous", "view", "to", "float", "double", "sum", "mean", "min", "max", "norm", "type")]
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
[u() for u in undo]; print(calls); result = [m, o, l]
"""),
    "remote_calls": ("pytorch/pytorch#57516", """
import os, torch.distributed.rpc as rpc, torch.distributed.autograd as dauto, tempfile
def add(a, b): return torch.relu(a + b)
class Remote:
    def __init__(s): s.l = nn.Linear(4, 4)
    def run(s, x): return s.l(x)
t = tempfile.mkdtemp(); os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{t}/x"))
""" + _MODEL + """r = rpc.remote("w0", Remote)
for i in range(STEPS):
    d.start(m); y = rpc.rpc_sync("w0", torch.add, args=(torch.ones(2, 4), 1)); z = rpc.rpc_async("w0", add, args=(y, y)).wait(); w = r.rpc_sync().run(z); l = m(z + w.detach()).sum()
    with dauto.context() as c:
        k = rpc.rpc_sync("w0", torch.mul, args=(m[0](torch.ones(1, 4)), 2)).sum(); dauto.backward(c, [k]); print(len(dauto.get_gradients(c)))
    """ + _STEP + """
rpc.shutdown(); result = [m, o, l]
"""),
    "models_are_packaged": ("pytorch/pytorch#64462", """
import torch.package as tp
""" + _MODEL + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); b = io.BytesIO()
    with tp.PackageExporter(b) as e: e.extern("**"); e.save_pickle("m", "m.pkl", m); e.save_source_string("src", "import torch\\ndef f(x): return torch.relu(x) + 1")
    b.seek(0); im = tp.PackageImporter(b); n = im.load_pickle("m", "m.pkl"); k = im.import_module("src").f(n(torch.ones(1, 4))); print(im.file_structure()); """ + _STEP + """
result = [m, o, l, k]
"""),
    "tracer_of_the_program": ("pytorch/pytorch#130861", """
import torch.fx as fx
class T(fx.Tracer):
    def is_leaf_module(s, m, n): return isinstance(m, nn.Linear)
    def call_module(s, m, f, a, k): seen.append(type(m).__name__); return super().call_module(m, f, a, k)
class B(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def forward(s, x): return torch.relu(F.dropout(s.l(x), .5, s.training)) @ x.t()
class I(fx.Interpreter):
    def call_function(s, t, a, k): seen.append(t.__name__); return super().call_function(t, a, k)
    def call_method(s, t, a, k): seen.append(t); return super().call_method(t, a, k)
m = nn.Sequential(B(), nn.Flatten()); """ + _SGD + """seen = []
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); g = fx.GraphModule(m, T().trace(m)); print(g.code); l = l + I(g).run(torch.ones(2, 4)).sum(); r = fx.replace_pattern(g, lambda x: torch.relu(x), lambda x: torch.sigmoid(x)); print(len(r)); fx.passes.shape_prop.ShapeProp(g).propagate(torch.ones(2, 4)); l = l + g(torch.ones(2, 4)).sum(); """ + _STEP + """
print(seen); result = [m, o, l]
"""),
    "recomputations_stop_early": ("pytorch/pytorch#96866", """
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop, create_selective_checkpoint_contexts, CheckpointPolicy
import functools
m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(.5), nn.GELU(), nn.Linear(4, 4), nn.LayerNorm(4)); """ + _SGD + """seen = []
m[2].register_forward_hook(lambda *a: seen.append("gelu"))
def policy(ctx, op, *a, **k): seen.append((str(op), ctx.is_recompute)); return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE
for i in range(STEPS):
    d.start(m); x = torch.randn(2, 4, requires_grad=True)
    with set_checkpoint_early_stop(i != 1): l = checkpoint(m, x, use_reentrant=False).sum() + checkpoint_sequential(m, 2, x, use_reentrant=False).sum() + checkpoint(m, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, policy)).sum()
    """ + _STEP + """
print(seen); result = [m, o, l]
"""),
    "operations_are_counted": ("pytorch/pytorch#134242", """
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker
from torch.profiler import profile, record_function
m = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1))); """ + _SGD + """
for i in range(STEPS):
    d.start(m)
    with FlopCounterMode(display=False, depth=None) as f: l = m(torch.randn(2, 4)).sum(); o.zero_grad(); l.backward()
    print(f.get_total_flops(), sorted((k, sorted((str(a), b) for a, b in v.items())) for k, v in f.get_flop_counts().items())); seen = []
    t = ModuleTracker(); h = m[1][0].register_forward_hook(lambda *a: seen.append(sorted(t.parents)))
    with t: l = m(torch.randn(2, 4)).sum(); l.backward()
    h.remove(); print(seen)
    with profile(with_stack=False, record_shapes=True, with_modules=True) as p:
        with record_function("mine"): l = m(torch.randn(2, 4)).sum()
        """ + _STEP + """
    print(sorted((e.key, e.count, str(e.input_shapes)) for e in p.key_averages(group_by_input_shape=True) if not e.key.startswith("Activity")))
    d.start(m)
    with profile() as p: m(torch.ones(2, 4, requires_grad=True))
    print(sorted((e.key, e.count) for e in p.key_averages() if not e.key.startswith("Activity"))); d.stop(); d.step()
result = [m, o, l]
"""),
    "functions_with_transforms": ("pytorch/functorch#1124", """
class Mul(torch.autograd.Function):
    @staticmethod
    def forward(x, k): seen.append("f"); return x * k, x.clone()
    @staticmethod
    def setup_context(ctx, inputs, output): ctx.k = inputs[1]; ctx.mark_non_differentiable(output[1]); ctx.save_for_backward(inputs[0]); ctx.save_for_forward(inputs[0])
    @staticmethod
    def backward(ctx, g, _): seen.append(("b", ctx.needs_input_grad)); return g * ctx.k, None
    @staticmethod
    def vmap(info, dims, x, k): seen.append("v"); return Mul.apply(x, k), (dims[0], dims[0])
    @staticmethod
    def jvp(ctx, t, _): seen.append("j"); return t * ctx.k, None
class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(c, x): x.mul_(2); c.mark_dirty(x); return x
    @staticmethod
    def backward(c, g): return g * 2
seen = []
""" + _MODEL + """
for i in range(STEPS):
    d.start(m); y = m[0](torch.randn(2, 4)); a, b = Mul.apply(y, 3.); z = y * 1; q = Dirty.apply(z); print(q is z, b.requires_grad, a.grad_fn.name(), type(a.grad_fn).__name__); v = torch.func.vmap(lambda x: Mul.apply(x, 2.)[0])(torch.ones(2, 3)); j = torch.func.jvp(lambda x: Mul.apply(x, 2.)[0], (torch.ones(2),), (torch.ones(2),)); g = torch.func.grad(lambda x: Mul.apply(x, 2.)[0].sum())(torch.ones(2)); l = (a + q).sum() + m(torch.ones(1, 4)).sum(); """ + _STEP + """
print(seen); result = [m, o, v, list(j), g]
"""),
    "gradients_of_each_sample": ("meta-pytorch/opacus#626", """
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.func import functional_call, vmap, grad, vjp, jacrev, stack_module_state, linearize
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    d.start(m); x = torch.randn(3, 4); call_for_per_sample_grads(m, loss_reduction="sum")(x).sum().backward(); gs = [p.grad_sample.clone() for p in m.parameters()]
    for p in m.parameters(): del p.grad_sample
    ps = {k: v.detach() for k, v in m.named_parameters()}; g = vmap(grad(lambda p, x: functional_call(m, p, (x[None],)).sum()), (None, 0))(ps, x); j = jacrev(lambda x: m(x))(x[0]); y, f = vjp(lambda x: m(x).sum(), x); h = f(torch.ones(()))[0]; print([torch.allclose(a, b) for a, b in zip(gs, g.values())]); l = m(x).sum(); """ + _STEP + """
result = [m, o, l, gs, list(g.values()), j, h]
"""),
    "hooks_of_the_graph": ("pytorch/pytorch#122729", """
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks, disable_saved_tensors_hooks, Node, register_multi_grad_hook, allow_mutation_on_saved_tensors, get_gradient_edge
m = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1)); """ + _SGD + """log = []
for i in range(STEPS):
    d.start(m)
    with save_on_cpu(): l = m(torch.randn(2, 4)).sum()
    with disable_saved_tensors_hooks("not here"): l = l + m(torch.ones(2, 4)).sum()
    h = register_multi_grad_hook(tuple(m.parameters()), lambda g: log.append(len([x for x in g if x is not None]))); k = register_multi_grad_hook(tuple(m.parameters()), lambda g: log.append(tuple(g.shape)), mode="any")
    with allow_mutation_on_saved_tensors(): a = torch.ones(2, requires_grad=True); b = a.clone(); c = (b ** 2).sum(); b.sin_(); c.backward(); print(a.grad)
    x = m[0](torch.ones(1, 4)); e = get_gradient_edge(x); (g,) = torch.autograd.grad(m[2](x).sum(), e, retain_graph=True); print(g.shape, e.output_nr, e.node.name()); """ + _STEP + """    h.remove(); k.remove(); log.append("|")
print(log); result = [m, o, l]
"""),
    "frames_are_traced": ("coveragepy/coveragepy#1192", """
import sys, threading
""" + _MODEL + """seen = []
def tr(f, e, a):
    if f.f_code.co_filename == "frames_are_traced": seen.append((e, f.f_code.co_name, f.f_lineno)); return tr
def pr(f, e, a):
    if f.f_code.co_filename == "frames_are_traced" and e in ("call", "return"): seen.append((e, f.f_code.co_name))
def run():
    x = m(torch.randn(2, 4))
    y = torch.relu(x)
    return y.sum()
for i in range(STEPS):
    sys.settrace(tr); d.start(m); l = run(); sys.settrace(None); sys.setprofile(pr); l = l + run(); """ + _STEP.strip() + """; sys.setprofile(None); print(sys.gettrace(), sys.getprofile(), threading.gettrace())
print(seen); result = [m, o, l]
"""),
    "lazy_modules": ("pytorch/pytorch#60132", """
m = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(1))
for i in range(STEPS):
    d.start(m); y = m(torch.randn(3, 5)); o = torch.optim.SGD(m.parameters(), lr=.1) if i == 0 else o; l = y.sum(); """ + _STEP + """    print([type(x).__name__ for x in m], [len(x._forward_pre_hooks) for x in pickle.loads(pickle.dumps(m))])
result = [m, o, l]
"""),
    "hooks_remove_hooks": ("huggingface/transformers#14427", """
seen = []; m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
def once(s, a, y):
    seen.append("once"); h[0].remove(); h[0] = m[2].register_forward_hook(lambda *a: seen.append("late")); s.register_forward_pre_hook(lambda *a: seen.append("pre"))
h = [m[0].register_forward_hook(once)]
def back(s, gi, go): seen.append("back"); hb[0].remove(); s.register_full_backward_pre_hook(lambda *a: seen.append("bpre"))
hb = [m[2].register_full_backward_hook(back)]; glob = torch.nn.modules.module
def g(s, a, y): seen.append(type(s).__name__)
hg = glob.register_module_forward_hook(g)
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); m[1]._forward_hooks.clear(); l = l + m(torch.ones(1, 4)).sum(); m[0]._forward_pre_hooks.clear(); l = l + m(torch.ones(1, 4)).sum(); """ + _STEP + """    print([len(x._forward_hooks) for x in copy.deepcopy(m)])
hg.remove(); print(seen); result = [m, o, l]
"""),
    "tables_of_hooks_are_replaced": ("wandb/wandb#6503", """
from collections import OrderedDict
seen = []; m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); m[0]._forward_hooks = OrderedDict(); m[0]._forward_pre_hooks = OrderedDict(); l = l + m(torch.ones(1, 4)).sum()
    for x in m.modules(): x._forward_hooks = OrderedDict(); x._forward_pre_hooks = OrderedDict(); x._backward_hooks = OrderedDict()
    m.apply(lambda x: seen.append(type(x).__name__)); l = l + m(torch.ones(1, 4)).sum(); """ + _STEP + """
    k = m[0]; s = k.__dict__.copy(); k.__dict__.clear(); k.__dict__.update(s); k.__setstate__(k.__dict__)
print(seen); result = [m, o, l]
"""),
    "objects_with_torch_function": ("hpcaitech/ColossalAI#825", """
class Unit:
    def __init__(s, t, u): s.t, s.u = t, u
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        log.append((f.__name__, len(args), sorted(kwargs or {}))); un = lambda a: a.t if isinstance(a, Unit) else [x.t if isinstance(x, Unit) else x for x in a] if isinstance(a, (list, tuple)) else a
        return Unit(f(*[un(a) for a in args], **{k: un(v) for k, v in (kwargs or {}).items()}), "m")
class Lit(int):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None): log.append(f.__name__); return NotImplemented
log = []; m = nn.Linear(4, 1); """ + _SGD + """
for i in range(STEPS):
    d.start(m); u = Unit(torch.ones(2, 4), "s"); a = torch.cat([u, torch.ones(1, 4)]); b = F.linear(u, m.weight); c = torch.add(torch.ones(2, 4), u, alpha=2); e = torch.ones(2, 4) * u if False else torch.mul(u, u); g = F.multi_head_attention_forward if False else F.dropout(u, training=False); print(type(a).__name__, a.t.shape, b.t.shape, g.u); k = nn.functional.mse_loss(u, torch.ones(2, 4)); torch.stack((u, u)); torch.where(torch.ones(2, 4) > 0, u, 0)
    try: torch.add(Lit(1), torch.ones(1))
    except TypeError as x: print(str(x)[:90])
    l = b.t.sum() + m(torch.randn(2, 4)).sum(); """ + _STEP + """
print(log, torch.overrides.is_tensor_like(u), torch.overrides.has_torch_function((u,))); result = [m, o, l]
"""),
    "overridable_functions_are_listed": ("OpenMined/PySyft#1904", """
from torch.overrides import get_overridable_functions, get_testing_overrides, resolve_name, is_tensor_method_or_property, get_ignored_functions
""" + _MODEL + """before = {k: len(v) for k, v in ((str(k), v) for k, v in get_overridable_functions().items())}
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); t = get_testing_overrides(); print([f in t for f in (torch.relu, F.relu, torch.conv1d, F.conv1d, torch.Tensor.add, torch.Tensor.abs, torch.abs, torch.lstm, torch.Tensor.__setitem__, torch.neg)], [resolve_name(f) for f in (torch.relu, F.relu, torch.conv1d, torch.Tensor.abs, torch.Tensor.__rdiv__, torch.lstm)], is_tensor_method_or_property(torch.Tensor.abs), {str(k): len(v) for k, v in get_overridable_functions().items()} == before); """ + _STEP + """
result = [m, o, l]
"""),
    "outputs_of_any_type": ("wandb/wandb#1122", """
import dataclasses, enum, collections, types
from typing import NamedTuple
@dataclasses.dataclass
class Out: logits: torch.Tensor; loss: object = None; extra: dict = dataclasses.field(default_factory=dict)
@dataclasses.dataclass(frozen=True)
class Cfg: a: int = 1
class E(enum.Enum): A = 1
class NT(NamedTuple): x: torch.Tensor; y: object
class It:
    def __init__(s): s.n = 0
    def __iter__(s): return s
    def __next__(s): s.n += 1; return s.n
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4)
    def forward(s, *a, **k): y = s.l(a[0]); return Out(y, extra={E.A: y, 3: [y], None: Cfg()}), NT(y, a[1:]), types.SimpleNamespace(y=y), {y: 1}, collections.deque([y]), iter([y]), (i for i in [y]), a[1], memoryview(b"x"), 10 ** 400, float("nan"), b"\\x00", "\\ud800", ..., NotImplemented, slice(y, None), range(3), {1, 2}, print, M, collections.defaultdict(list, a=[y]), collections.ChainMap({"a": y}), collections.Counter("aab"), types.MappingProxyType({"a": y})
m = nn.Sequential(); m.k = M(); """ + _SGD + """rec = []; rec.append(rec)
for i in range(STEPS):
    d.start(m); it = It(); r = m.k(torch.randn(2, 4), it, rec, {"a": rec}, object(), z=It()); print(it.n, next(r[5]) is r[1].x, next(r[6]) is r[1].x, len(r), r[3][r[1].x]); l = r[0].logits.sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "attributes_of_modules_are_listed": ("pytorch/pytorch#103684", """
m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)); """ + _SGD + """
def state(): return [(sorted(x.__dict__), sorted(set(dir(x)) - set(dir(nn.Module))), repr(x), len(vars(x)), type(x).__mro__[0].__name__, [type(v).__name__ for v in vars(x).values()]) for x in m.modules()] + [sorted(vars(o)), sorted(vars(type(o))), sorted(k for k in vars(nn.Module) if "rank" in k), sorted(vars(m[0].weight)), m[0].weight._backward_hooks, m[0].weight.__dict__]
before = state()
for i in range(STEPS): d.start(m); l = m(torch.randn(3, 4)).sum(); o.zero_grad(); l.backward(); a = state(); o.step(); d.stop(); d.step(); print(a == before, state() == before, [k for k, (x, y) in enumerate(zip(a, before)) if x != y])
print(before[0][:2]); result = [m, o, l]
"""),
    "pickles_are_the_same": ("wandb/wandb#11907", """
import sys, os, zipfile
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)); """ + _SGD + """
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 4)).sum(); o.zero_grad(); l.backward(); o.step(); b = [pickle.dumps(x) for x in (m, o, m[0].weight, l.detach(), m.state_dict(), F.relu, torch.relu, torch.Tensor.abs, torch.conv1d)]; print([len(x) for x in b]); f = io.BytesIO(); torch.save([m, o], f); z = zipfile.ZipFile(io.BytesIO(f.getvalue())); print(sorted((e.filename, e.CRC) for e in z.infolist() if "data" in e.filename)); d.stop(); d.step(); print([pickle.dumps(x) == y for x, y in zip((m, o), b)], sys.getsizeof(m), sys.getsizeof(m._forward_hooks), len(m._forward_hooks))
result = [m, o, l]
"""),
    "attributes_are_guarded": ("ultralytics/thop#141", """
class Frozen(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); object.__setattr__(s, "_sealed", True)
    def __setattr__(s, n, v):
        if s.__dict__.get("_sealed"): raise AttributeError("sealed: " + n)
        super().__setattr__(n, v)
    def __delattr__(s, n): raise AttributeError("sealed")
    def forward(s, x): return s.l(x)
class Props(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(4, 1)
    @property
    def weight(s): log.append("weight"); raise RuntimeError("do not look")
    @property
    def device(s): log.append("device"); return next(s.parameters()).device
    def extra_repr(s): log.append("repr"); return ""
    def _get_name(s): log.append("name"); return "X"
    def forward(s, x): return s.l(x)
    def __getstate__(s): log.append("getstate"); return s.__dict__.copy()
log = []; m = nn.Sequential(Frozen(), Props()); """ + _SGD + """log.clear()
for i in range(STEPS): d.start(m); l = m(torch.randn(2, 4)).sum(); """ + _STEP.strip() + """; c = copy.deepcopy(m); print(c(torch.ones(1, 4)).shape)
print(log, [sorted(x.__dict__) for x in m]); result = [[*m.parameters()], o, l]
"""),
    "tensors_are_freed_at_once": ("pytorch/pytorch#13246", """
import gc, sys, weakref, tracemalloc
""" + _MODEL + """
for i in range(6):
    d.start(m); x = torch.randn(2, 4); n = sys.getrefcount(x), sys.getrefcount(m[0].weight); y = m[0](x); z = torch.relu(y); w = [weakref.ref(y), weakref.ref(z)]; r = [sys.getrefcount(a) for a in (x, y, z)]; k = z.sum(); del y; a = w[0]() is None; del z; print(n, r, a, [q() is None for q in w], len(gc.get_referrers(x)) , [type(q).__name__ for q in gc.get_referrers(m[0]) if type(q).__name__ != 'frame']); l = k; del k; """ + _STEP + """
    u = [weakref.ref(p.grad) for p in m.parameters() if p.grad is not None]; o.zero_grad(set_to_none=True); print([q() is None for q in u]); del x, l
print(len([q for q in gc.get_objects() if type(q) is nn.Linear])); result = [m, o]
"""),
    "compiled_before_an_optimizer": ("pytorch/pytorch#149502", """
import warnings; warnings.simplefilter("ignore")
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx
m = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Sequential(nn.Linear(4, 1))).eval(); c = CompileCounter(); f = torch.compile(lambda x: m(x).relu(), backend=c, fullgraph=True)
for i in range(STEPS): y = f(torch.ones(2, 4)); y.sum().backward(); print(c.frame_count, c.op_count, torch.nn.modules.module._has_any_global_hook())
e = [torch.export.export(m, (torch.ones(2, 4),), strict=s) for s in (False, True)]; print([x.graph_module.code for x in e], make_fx(m)(torch.ones(2, 4)).code, torch.fx.symbolic_trace(m).code)
with torch.inference_mode(): k = [m(torch.randn(2, 4)).sum().item() for i in range(STEPS)]
with warnings.catch_warnings(record=True) as w: warnings.simplefilter("always"); torch.compile(nn.Linear(4, 4), backend="eager")(torch.ones(1, 4)); print([str(x.message)[:50] for x in w])
result = [m, y, k]
"""),
    "encoder_takes_its_fast_path": ("pytorch/pytorch#128413", """
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    def __torch_dispatch__(s, f, types, args=(), kwargs=None): seen.append(str(f)); return f(*args, **(kwargs or {}))
class Own(nn.TransformerEncoderLayer):
    def modules(s): log.append("asked"); return super().modules()
log = []; e = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2); m = nn.Sequential(e, Own(16, 2, 24, batch_first=True), nn.Linear(16, 1)); """ + _SGD + """
one = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(); pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
for i in range(STEPS):
    d.start(m); l = m(torch.randn(2, 5, 16)).square().mean(); seen = []; m.eval()
    with torch.no_grad(), Count(): y = m(torch.randn(2, 5, 16)); z = e(torch.randn(2, 5, 16), src_key_padding_mask=pad)
    h = e.layers[1].linear1.register_forward_hook(lambda *a: log.append("hook"))
    with torch.no_grad(): z = z + e(torch.ones(2, 5, 16))
    h.remove()
    try: e.layers[0](torch.ones(2, 5, 15))
    except (AssertionError, RuntimeError) as x: print(type(x).__name__)
    m.train(); """ + _STEP + """
    print(seen, [sorted(vars(x)) for x in e.layers])
for i in range(STEPS):
    seen = []; d.start(one)
    with torch.inference_mode(), Count(): k = one(torch.ones(2, 5, 16))
    d.stop(); d.step(); print(seen)
print(log); result = [m, o, l, y, z, k.clone()]
"""),
    "callables_are_graphed": ("NVIDIA/TransformerEngine#2831", """
""" + _MODEL + """
for i in range(STEPS):
    d.start(m)
    for c, a in ((m, (torch.ones(2, 4),)), ((m[0], m[2]), ((torch.ones(2, 4),), (torch.ones(2, 4),)))):
        try: torch.cuda.make_graphed_callables(c, a)
        except Exception as x: print(type(x).__name__, str(x)[:60])  # Without a GPU it fails after it has looked for hooks.
    l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
result = [m, o, l]
"""),
    "defaults_are_assigned": ("pytorch/pytorch#31344", """
""" + _MODEL + """kept = F.dropout.__defaults__, F.layer_norm.__defaults__, F.softmax.__defaults__
try:
    for i in range(STEPS):
        d.start(m)
        if i == 1: F.dropout.__defaults__ = (0.9, True, False); F.layer_norm.__defaults__ = (None, None, 10.)
        print(F.dropout(torch.ones(6)).tolist(), F.layer_norm(torch.arange(4.), (4,)).tolist()); l = m(torch.randn(2, 4)).sum(); """ + _STEP + """
        F.softmax.__defaults__ = (0, 3, (torch.float64, torch.float32)[i % 2]); print(F.softmax(torch.ones(2), 0).dtype)
finally: F.dropout.__defaults__, F.layer_norm.__defaults__, F.softmax.__defaults__ = kept
result = [m, o, l]
"""),
    "subclass_counts_its_operators": ("pytorch/pytorch#85826", """
from torch.utils._pytree import tree_map
class W(torch.Tensor):
    count = 0
    @staticmethod
    def __new__(cls, t, requires_grad=False): return torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype, requires_grad=requires_grad)
    def __init__(s, t, requires_grad=False): s.t = t
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, f, types, args=(), kwargs=None):
        W.count += 1; un = lambda e: e.t if isinstance(e, W) else e; y = f(*tree_map(un, args), **tree_map(un, kwargs or {}))
        return W(y) if f is torch.ops.aten.detach.default else y * (1 + 1e-3 * torch.rand(())) if y.is_floating_point() else y
class T(nn.Module):
    def forward(s, x): return s.w * x
m = nn.Sequential(nn.Linear(3, 3), T()); m[1].register_buffer("w", W(torch.ones(3))); o = torch.optim.SGD(m.parameters(), lr=.1)
for i in range(STEPS):
    d.start(m); l = m(W(torch.ones(2, 3))).sum(); """ + _STEP + """    print(W.count)
result = [m[0], o, l]
"""),
}
