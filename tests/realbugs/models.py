# SPDX-License-Identifier: Apache-2.0
"""Faults of models and losses that many published bugs are made of. CASE names one, BUG=0 is the sound twin."""
from loops import *


def labels_not_shifted():
    """The labels are the tokens that went in."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        loss = ce(net(x), x if BUG else y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    train(net, opt, step_of)


class SdpaAttention(Attention):
    """PyTorch's own attention; the mask is its flag."""

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(rope(q, pos), rope(k, pos), v, is_causal=self.is_causal)
        return self.o(out.transpose(1, 2).reshape(b, t, d))


def mask_missing():
    """is_causal is not passed on."""
    SdpaAttention.is_causal = not BUG
    net = Lm(attn=SdpaAttention)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


class QueryAttention(Attention):
    """The softmax is over the queries."""

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        p = torch.softmax(torch.matmul(rope(q, pos), rope(k, pos).transpose(-1, -2)) * self.scale + mask, -2 if BUG else -1)
        return self.o(torch.matmul(F.dropout(p, 0.1), v).transpose(1, 2).reshape(b, t, d))


def softmax_over_queries():
    """softmax(dim=-2)"""
    net = Lm(attn=QueryAttention)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


class Detached(Block):
    """Which part of a block's residuals is detached."""
    where = ""

    def forward(self, x, mask, pos):
        a = self.attn(self.norm1(x), mask, pos)
        x = (x.detach() if self.where == "first" else x) + a
        m = self.mlp(self.norm2(x))
        return (x.detach() if self.where == "second" else x) + (m.detach() if self.where == "branch" else m)


def detached(where, layers):
    net = Lm()
    net.layers = nn.ModuleList(Detached() for _ in range(3))
    for layer in layers if BUG else ():
        net.layers[layer].where = where
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def residual_detached():
    """x.detach() + attention in each block."""
    detached("first", (0, 1, 2))


def residual_detached_behind():
    """x.detach() + mlp in one block."""
    detached("second", (1,))


def branch_detached():
    """x + mlp.detach() in one block."""
    detached("branch", (1,))


def branches_detached():
    """x + mlp.detach() in each block."""
    detached("branch", (0, 1, 2))


def softmax_before_loss():
    """The model's softmax goes into cross_entropy."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        out = net(x)
        loss = ce(out.softmax(-1) if BUG else out.log_softmax(-1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    train(net, opt, step_of)


def regression(loss_of):
    """Of 16 numbers; loss_of(prediction [16, 1], target [16] where it is the bug, else [16, 1])."""
    def whole(net, g):
        x = torch.randn(16, D, generator=g)
        y = x[:, 0].sin() + x[:, 1]
        return loss_of(net(x), y if BUG else y[:, None])

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 1)), whole)


def loss_of_all_pairs():
    """mse_loss of a prediction [N, 1] and a target [N]."""
    regression(F.mse_loss)


def difference_of_all_pairs():
    """The same, by hand."""
    regression(lambda prediction, y: ((prediction - y) ** 2).mean())


def policy_of_all_pairs():
    """log-probabilities [N] times advantages [N, 1]."""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        choice = torch.distributions.Categorical(logits=net(x))
        action = torch.randint(0, 4, (16,), generator=g)
        advantage = x[torch.arange(16), action]
        return -(choice.log_prob(action) * (advantage[:, None] if BUG else advantage)).mean() - 0.01 * choice.entropy().mean()

    fitted(nn.Linear(D, 4), loss_of)


def attention_over_batch():
    """A vision transformer without batch_first=True."""
    fitted(Vit(batch_first=not BUG), images)


def lstm_over_batch():
    """An LSTM without batch_first=True, whose last place is taken."""
    recurrent(True, batch_first=not BUG)


def lstm_lm_over_batch():
    """The same of a language model."""
    recurrent(False, batch_first=not BUG)


def log_softmax_over_batch():
    """log_softmax(dim=0)"""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        return F.nll_loss(F.log_softmax(net(x), 0 if BUG else 1), x.argmax(-1))

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D + 1)), loss_of)


def logits_behind_relu():
    """The last layer has an activation, too."""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        out = net(x)
        return F.cross_entropy(out.relu() if BUG else out, x.argmax(-1))

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D + 1)), loss_of)


def encoder_detached():
    """The encoder runs under no_grad(), and the optimizer holds it."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))
            self.decoder = nn.Linear(D, V)

        def forward(self, x):
            hidden = self.encoder(x)
            return self.decoder(hidden.detach() if BUG else hidden)

    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        return F.cross_entropy(net(x), x.argmax(-1))

    fitted(Net(), loss_of)


def padding_in_loss():
    """No ignore_index."""
    net = Lm()
    net.embed = nn.Embedding(V, D, padding_idx=0)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        lengths = torch.tensor([T, T - 2, T - 4, T - 6])[:, None]
        x = torch.where(torch.arange(T) < lengths, x, 0)
        y = torch.where(torch.arange(T) < lengths - 1, y, 0)
        opt.zero_grad()
        ce(net(x), y, ignore=-100 if BUG else 0).backward()
        opt.step()

    train(net, opt, step_of)


def logits_in_nll_loss():
    """nll_loss without log_softmax."""
    fitted(small(), of_noise(lambda net, x, y: F.nll_loss(net(x) if BUG else F.log_softmax(net(x), 1), y)))


def divergence_of_probabilities():
    """kl_div of a softmax."""
    def loss_of(net, x, y):
        teacher = (3 * x).softmax(-1)
        out = net(x)
        return F.kl_div(out.softmax(-1) if BUG else out.log_softmax(-1), teacher, reduction="batchmean")

    fitted(small(D), of_noise(loss_of))


def softmax_of_one_class():
    """A softmax over the one number that says yes or no."""
    def loss_of(net, x, y):
        out = net(x)
        return F.binary_cross_entropy(out.softmax(1) if BUG else out.sigmoid(), (y > 9).float()[:, None])

    fitted(small(1), of_noise(loss_of))


def ratio_to_itself():
    """PPO whose old log-probabilities are not detached: the gradient of the ratio is 0 by construction."""
    def loss_of(net, x, y):
        now = net(x).log_softmax(1)[:, 0]
        ratio = now - (now if BUG else now.detach())
        return -(ratio.exp() * x[:, 0]).mean()

    fitted(small(4), of_noise(loss_of))


def adapters_begin_at_zero():
    """Both factors of each adapter are 0 in the beginning; other parameters are trained."""
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.a, self.b = nn.Linear(D, D).requires_grad_(False), nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)
            nn.init.zeros_(self.b.weight)
            if BUG:
                nn.init.zeros_(self.a.weight)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x))

    net = nn.Sequential(Adapter(), nn.ReLU(), Adapter(), nn.ReLU(), nn.Linear(D, D))
    fitted(net, of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def weights_begin_with_one_number():
    """Each weight of a layer is the same."""
    net = nn.Sequential(nn.Linear(D, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, D))
    for layer in net[::2] if BUG else ():
        nn.init.constant_(layer.weight, 0.02)
    fitted(net, of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def target_beyond_sigmoid():
    """An autoencoder ends with a sigmoid, and its images are between -1 and 1."""
    def loss_of(net, x, y):
        image = x.clamp(-1, 1)
        out = net(image)
        return F.mse_loss(out.sigmoid() if BUG else out.tanh(), image)

    fitted(small(D), of_noise(loss_of))


def negative_target_of_relu():
    """A regression of numbers of both signs ends with a ReLU."""
    def loss_of(net, x, y):
        return ((net(x).relu() - (x[:, :1] if BUG else x[:, :1].abs())) ** 2).mean()

    fitted(small(1), of_noise(loss_of))


def layers_in_a_list():
    """A list of Python holds the layers instead of an nn.ModuleList."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(D, 64), nn.Linear(64, D)
            layers = [nn.Linear(64, 64) for _ in range(3)]
            self.layers = layers if BUG else nn.ModuleList(layers)

        def forward(self, x):
            x = self.first(x)
            for layer in self.layers:
                x = x + layer(x.relu())
            return self.last(x)

    fitted(Net(), of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def target_not_detached():
    """Q-learning whose target has a graph."""
    def loss_of(net, x, y):
        target = x[:, 0] + 0.9 * net(x.flip(1)).max(1).values
        return F.smooth_l1_loss(net(x)[:, 0], target if BUG else target.detach())

    fitted(small(4), of_noise(loss_of))


def router_does_not_weigh():
    """The router's choice is used, and its probabilities are not."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.last = nn.Linear(D, 4), nn.Linear(D, D)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D)) for _ in range(4))

        def forward(self, x):
            weight, chosen = self.router(x).softmax(-1).max(-1)
            parts = [expert(x) * ((chosen == number) * (1.0 if BUG else weight))[:, None] for number, expert in enumerate(self.experts)]
            return self.last(x + sum(parts))

    fitted(Net(), of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def adapters_recomputed_without_graph():
    """Reentrant checkpointing of blocks with adapters, whose input requires no gradient."""
    from torch.utils.checkpoint import checkpoint

    class Adapted(Block):
        def __init__(self):
            super().__init__()
            self.requires_grad_(False)
            self.a, self.b = nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)

        def forward(self, x, mask, pos):
            return checkpoint(lambda x: super(Adapted, self).forward(x, mask, pos) + self.b(self.a(x)), x, use_reentrant=BUG)

    net = Lm()
    net.embed.requires_grad_(False)
    net.layers = nn.ModuleList(Adapted() for _ in range(3))
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


class ViewAttention(SdpaAttention):
    """view() instead of transpose(), before the attention or behind it."""
    where = ""
    is_causal = True

    def forward(self, x, mask, pos):
        b, t, d = x.shape

        def heads(y):
            return y.view(b, self.h, t, -1) if self.where == "before" else y.view(b, t, self.h, -1).transpose(1, 2)

        out = F.scaled_dot_product_attention(rope(heads(self.q(x)), pos), rope(heads(self.k(x)), pos), heads(self.v(x)), is_causal=True)
        return self.o(out.reshape(b, t, d) if self.where == "behind" else out.transpose(1, 2).reshape(b, t, d))


def viewed(where):
    ViewAttention.where = where if BUG else ""
    net = Lm(attn=ViewAttention)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def heads_viewed_before():
    """[batch, positions, features] is viewed as [batch, heads, positions, features]."""
    viewed("before")


def heads_viewed_behind():
    """The attention's result is viewed as [batch, positions, features]."""
    viewed("behind")


def states_viewed():
    """What both directions of an LSTM end with is viewed as one row for each sample."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer, self.head = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True, bidirectional=True), nn.Linear(2 * D, V)

        def forward(self, x):
            states = self.layer(self.embed(x))[1][0]
            return self.head((states if BUG else states.transpose(0, 1)).reshape(len(x), -1))

    def loss_of(net, g):
        x, y = batch(int(torch.randint(0, 9999, (), generator=g)))
        return ce(net(x), y[:, -1])

    fitted(Net(), loss_of)


def padded_encoder(mask_of):
    """A classifier of sequences of several lengths; mask_of(padding) is what its encoder gets."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(V, D, padding_idx=0), nn.Linear(D, 5)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 64, 0.1, batch_first=True), 2, enable_nested_tensor=False)

        def forward(self, x):
            return self.head(self.encoder(self.embed(x), src_key_padding_mask=mask_of(x == 0))[:, 0])

    def loss_of(net, g):
        x = torch.randint(1, V, (6, T), generator=g)
        x = torch.where(torch.arange(T) < torch.tensor([12, 10, 9, 7, 5, 4])[:, None], x, 0)
        return F.cross_entropy(net(x), x[:, 0] % 5)

    fitted(Net(), loss_of)


def padding_mask_inverted():
    """True where there is a token."""
    padded_encoder(lambda padding: ~padding if BUG else padding)


def padding_mask_missing():
    """src_key_padding_mask is not passed."""
    padded_encoder(lambda padding: None if BUG else padding)


def dropout_of_the_kept():
    """A dropout is given the share that is kept."""
    net = with_dropout()
    for layer in net.layers:
        layer.drop.p = 0.9 if BUG else 0.1
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def momentum_of_the_past():
    """A BatchNorm is given the weight of the batches before, as another framework wants it."""
    net = nn.Sequential(nn.Linear(D, 64), nn.BatchNorm1d(64, momentum=0.99 if BUG else 0.01), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, V))
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step_of(step, net, opt):
        x = torch.randn(16, D, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        F.cross_entropy(net(x), x.argmax(-1)).backward()
        opt.step()

    train(net, opt, step_of)


# Ranks, and a part of the first answer; "": no rule finds it.
CASES = {
    "labels_not_shifted": (1, "label-shift"), "mask_missing": (1, "attention-sees-future"),
    "dropout_of_the_kept": (1, "dropout-inverted"), "momentum_of_the_past": (1, "momentum-inverted"),
    "residual_detached": (1, "residual-detached"), "residual_detached_behind": (1, "residual-detached"),
    "branch_detached": (1, "layers.1.mlp"), "branches_detached": (1, "gradient-missing"),
    "softmax_over_queries": (1, "softmax-dimension"), "softmax_before_loss": (1, "loss-of-probabilities"),
    "loss_of_all_pairs": (1, "loss-broadcast"), "difference_of_all_pairs": (1, "loss-broadcast"),
    "policy_of_all_pairs": (1, "loss-broadcast"), "attention_over_batch": (1, "sequence-dimension"),
    "lstm_over_batch": (1, "sequence-dimension"), "lstm_lm_over_batch": (1, "sequence-dimension"),
    "log_softmax_over_batch": (1, "loss-of-probabilities"), "logits_behind_relu": (1, "loss-of-probabilities"),
    "encoder_detached": (1, "gradient-missing"), "padding_in_loss": (1, "padding-in-loss"),
    "logits_in_nll_loss": (1, "loss-of-probabilities"), "divergence_of_probabilities": (1, "loss-of-probabilities"),
    "softmax_of_one_class": (1, "loss-of-probabilities"), "ratio_to_itself": (1, "gradient-zero"),
    "adapters_begin_at_zero": (1, "gradient-zero"), "weights_begin_with_one_number": (1, "units-alike"),
    "target_beyond_sigmoid": (1, "target-unreachable"), "negative_target_of_relu": (1, "target-unreachable"),
    "layers_in_a_list": (1, "layers-untrained"), "target_not_detached": (1, "target-moves"),
    "router_does_not_weigh": (1, "gradient-missing"), "adapters_recomputed_without_graph": (1, "gradient-missing"),
    "heads_viewed_before": (1, "view-mixes"), "heads_viewed_behind": (1, "view-mixes"), "states_viewed": (1, "view-mixes"),
    "padding_mask_inverted": (1, "padding-attended"), "padding_mask_missing": (1, "padding-attended"),
}

if __name__ == "__main__":
    run_case(globals())
