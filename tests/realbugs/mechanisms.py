# SPDX-License-Identifier: Apache-2.0
"""Faults of training loops that many published bugs are made of: gradients, optimizers, schedules, micro batches. CASE names one, BUG=0 is
the sound twin."""
import copy

from loops import *


def lost_micro_batches():
    """zero_grad() stands inside the loop over micro batches."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        opt.zero_grad()
        for micro in range(4):
            if BUG:
                opt.zero_grad()
            x, y = batch(4 * step + micro)
            (ce(net(x), y) / 4).backward()
        opt.step()

    train(net, opt, step_of)


def never_zeroed():
    """zero_grad() is never called."""
    net = Lm()
    opt = torch.optim.SGD(net.parameters(), 0.01)

    def step_of(step, net, opt):
        x, y = batch(step)
        if not BUG:
            opt.zero_grad()
        ce(net(x), y).backward()
        opt.step()

    train(net, opt, step_of)


def tie_broken():
    """The output layer is the embedding's weight, until a deep copy of the state makes two of one."""
    net = Lm()
    with torch.no_grad():
        net.embed.weight.mul_(0.05)
    net.head.weight = nn.Parameter(net.embed.weight.detach().clone()) if BUG else net.embed.weight
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def restored_behind_forward():
    """A hook of a checkpoint writes an old weight back between forward and optimizer, at step 10."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    old = copy.deepcopy(net.layers[1].state_dict())

    def step_of(step, net, opt):
        plain(step, net, opt)
        if BUG and step == 10:
            net.layers[1].load_state_dict(old)
        opt.step()

    train(net, opt, step_of)


def batch_repeated():
    """The loader gives its batch once more after each eighth step."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step - 1 if BUG and step % 8 == 7 else step, net, opt)
        opt.step()

    train(net, opt, step_of)


def evaluation_not_undone():
    """An evaluation each six steps calls model.eval(), and nobody calls model.train() behind it before the epoch's end."""
    net = with_dropout()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        if step % 6 == 5:
            net.eval()
            with torch.no_grad():
                ce(net(batch(900 + step)[0]), batch(900 + step)[1])
            if not BUG:
                net.train()
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def never_in_training():
    """A pretrained model comes in evaluation, and model.train() is not called."""
    net = with_dropout()
    net.train(not BUG)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def block_frozen():
    """The second of four blocks requires no gradient."""
    net = Lm(layers=4)
    net.layers[1].requires_grad_(not BUG)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def block_not_in_optimizer():
    """The optimizer's list leaves the last block out."""
    net = Lm(layers=4)
    opt = torch.optim.AdamW([p for n, p in net.named_parameters() if not BUG or not n.startswith("layers.3.")], 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def accumulate(weights, clip):
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        opt.zero_grad()
        for micro, weight in enumerate(weights):
            x, y = batch(4 * step + micro)
            (ce(net(x), y) * weight).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()

    train(net, opt, step_of)


def micro_batches_summed():
    """The loss is not divided by the number of micro batches; clipping in each step hides it."""
    accumulate([1] * 4 if BUG else [1 / 4] * 4, 0.05)


def micro_batches_summed_clipped_at_times():
    """The same, with a clipping that works in some steps."""
    accumulate([1] * 4 if BUG else [1 / 4] * 4, 2.0)


def micro_batches_running_mean():
    """The loss is divided by the number of micro batches so far."""
    accumulate([1 / (i + 1) for i in range(4)] if BUG else [1 / 4] * 4, 0)


def clipped_before_unscaling():
    """Gradients are clipped while they have the GradScaler's factor."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def step_of(step, net, opt):
        x, y = batch(step)
        loss = ce(net(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        if not BUG:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    train(net, opt, step_of)


def never_unscaled():
    """optimizer.step() instead of scaler.step(optimizer); Adam's division hides it."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def step_of(step, net, opt):
        x, y = batch(step)
        opt.zero_grad()
        scaler.scale(ce(net(x), y)).backward()
        if BUG:
            opt.step()
        else:
            scaler.step(opt)
            scaler.update()

    train(net, opt, step_of)


def stepping(change, lr=1e-3, **kwargs):
    """One rank; change(step, net, opt) between backward and optimizer."""
    net = Lm(**kwargs)
    opt = torch.optim.AdamW(net.parameters(), lr)

    def step_of(step, net, opt):
        plain(step, net, opt)
        if BUG:
            change(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def averages_from_old_checkpoint():
    """At step 12 the optimizer of the last block continues with averages of step 4."""
    kept = {}

    def change(step, net, opt):
        block = net.layers[2].parameters()
        if step == 4:
            kept.update({p: opt.state[p]["exp_avg"].clone() for p in block})
        if step == 12:
            for p in block:
                opt.state[p]["exp_avg"].copy_(kept[p])

    stepping(change)


def gradients_of_last_step():
    """Two buffers take turns, and the optimizer reads the one that is not written."""
    before = {}

    def change(step, net, opt):
        for p in net.parameters():
            now = p.grad.clone()
            if p in before:
                p.grad.copy_(before[p])
            before[p] = now

    stepping(change)


def gradients_exchanged():
    """A flat buffer has two parameters of one size in another order than the list that reads it."""
    def change(step, net, opt):
        one, other = net.layers[0].attn.q.weight, net.layers[1].attn.k.weight
        one.grad, other.grad = other.grad, one.grad

    stepping(change)


def gradients_zeroed_before_step():
    """zero_grad(set_to_none=False) stands between backward and step; decay alone changes the weights."""
    stepping(lambda step, net, opt: opt.zero_grad(set_to_none=False))


def gradients_gone_before_step():
    """zero_grad() stands between backward and step."""
    stepping(lambda step, net, opt: opt.zero_grad())


def schedule_not_restored():
    """The scheduler begins again at step 12, the optimizer goes on."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        at = step - 12 if BUG and step >= 12 else step
        for group in opt.param_groups:
            group["lr"] = 1e-3 * min(1, (at + 1) / 4) * 0.97 ** at
        opt.step()

    train(net, opt, step_of)


def epochs_in_one_order():
    """Epochs of 8 batches; set_epoch() is not called."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(2 if BUG else 2 + step // 8))
        plain(int(order[step % 8]), net, opt)
        opt.step()

    train(net, opt, step_of)


def schedule_beyond_its_end():
    """A cosine for 6 epochs is stepped after each batch."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6 if BUG else STEPS)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()
        schedule.step()

    train(net, opt, step_of)


def schedule_in_epochs():
    """A rate that falls to a tenth after two epochs is stepped after each batch."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2 if BUG else 12)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()
        schedule.step()

    train(net, opt, step_of)


# Ranks, and a part of the first answer; "": no rule finds it.
CASES = {
    "lost_micro_batches": (1, "micro-batches-lost"), "never_zeroed": (1, "gradients-not-zeroed"), "tie_broken": (1, "tied-weights-part"),
    "restored_behind_forward": (1, "layers.1."), "batch_repeated": (1, "batch-repeated"), "evaluation_not_undone": (1, "model-in-eval"),
    "never_in_training": (1, "model-in-eval"), "block_frozen": (1, "layers.1."), "block_not_in_optimizer": (1, "layers.3."),
    "micro_batches_summed": (1, "gradient-multiple"), "micro_batches_summed_clipped_at_times": (1, "gradient-multiple"),
    "micro_batches_running_mean": (1, "micro-batch-weights"), "clipped_before_unscaling": (1, "clip-scaled"),
    "never_unscaled": (1, "gradient-scaled"), "averages_from_old_checkpoint": (1, "layers.2."),
    "gradients_of_last_step": (1, "gradient-stale"), "gradients_exchanged": (1, "gradient-exchanged"),
    "gradients_zeroed_before_step": (1, "gradient-lost"), "gradients_gone_before_step": (1, "update-zero"),
    "schedule_not_restored": (1, "schedule-restarts"), "epochs_in_one_order": (1, "batches-in-one-order"),
    "schedule_beyond_its_end": (1, "schedule-turns-back"), "schedule_in_epochs": (1, "schedule-ends-early"),
}

if __name__ == "__main__":
    run_case(globals())
