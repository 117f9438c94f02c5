# SPDX-License-Identifier: Apache-2.0
"""A decode loop with a cache (contiguous, or of pages of 4 tokens)."""
from common import *


class CachedAttention(Attention):
    store = None

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = rope(q, pos), rope(k, pos)
        k, v = CachedAttention.store.put(self, k, v)
        p = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * self.scale + mask, -1)
        return self.o(torch.matmul(p, v).transpose(1, 2).reshape(b, t, d))


class Whole:
    def __init__(self):
        self.kv = {}

    def put(self, layer, k, v):
        if layer in self.kv:
            k, v = (torch.cat((a, b), 2) for a, b in zip(self.kv[layer], (k, v)))
        self.kv[layer] = k, v
        return k, v


class Server:
    attention = CachedAttention

    def __init__(self, net, position_offset=0, store=None):
        self.net, self.offset = net, position_offset
        CachedAttention.store = store or Whole()
        config = os.environ.get("RP_CONFIG")
        self.debugger = None
        if config:
            from rankprobe.pytorch import PrecisionDebugger
            self.debugger = PrecisionDebugger(config_path=config)

    @torch.no_grad()
    def forward(self, tokens, pos, mask):
        if self.debugger:
            self.debugger.start(model=self.net)
        out = self.net(tokens, mask, pos)
        if self.debugger:
            self.debugger.stop(); self.debugger.step()
        return out[:, -1].argmax(-1, keepdim=True)

    def generate(self, prompt, n, past=0):
        t = prompt.shape[1]
        mask = torch.cat((torch.zeros(t, past), causal(t)), 1)
        token = self.forward(prompt, torch.arange(past, past + t), mask)
        out = [token]
        for i in range(n - 1):
            pos = past + t + i
            token = self.forward(token, torch.tensor([pos + self.offset]), torch.zeros(1, pos + 1))
            out.append(token)
        text = torch.cat(out, 1).tolist()
        print("tokens", text, flush=True)
        return text
