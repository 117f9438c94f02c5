# SPDX-License-Identifier: Apache-2.0
"""Paged KV cache: a freed block is reused for the second request, and its table still points at the first one's page on a prefix hit (stale block). 1 process.
Must: attention of layer 0 of the request that reads the page (first forward of request 2)."""
from common import *
from serve import Server
PAGE = 4


class Paged:
    """Pages of 4 tokens; a prefix of whole pages with the same hash is taken from the pool."""

    def __init__(self):
        self.k, self.v = {}, {}
        self.free, self.prefix, self.table, self.length, self.fresh = list(range(8)), {}, [], 0, []

    def begin(self, prompt):
        self.table, self.length = [], 0
        key = tuple(prompt[:PAGE])
        if key in self.prefix:                             # prefix hit: its first page already exists
            self.table, self.length = [self.prefix[key]], PAGE
        else:
            self.key = key
        return self.length

    def end(self, keep):
        for page in self.table:
            if page not in self.prefix.values() or (BUG and not keep):
                self.free.insert(0, page)                  # BUG: the page of the prefix is freed too, the table of prefixes still has it

    def put(self, layer, k, v):
        t = k.shape[2]
        first = layer is self.layers[0]
        if first:
            while (self.length + t) > PAGE * len(self.table):
                self.table.append(self.free.pop(0))
            if not self.prefix and self.length == 0:
                self.prefix[self.key] = self.table[0]
        for store, new in ((self.k, k), (self.v, v)):
            pages = store.setdefault(layer, torch.zeros(8, PAGE, new.shape[1], new.shape[3]))
            for i in range(t):
                at = self.length + i
                pages[self.table[at // PAGE], at % PAGE] = new[0, :, i]
        total = self.length + t
        out = tuple(store[layer][self.table].flatten(0, 1)[:total].permute(1, 0, 2)[None] for store in (self.k, self.v))
        if layer is self.layers[-1]:
            self.length = total
        return out


torch.manual_seed(SEED)
net = Lm(attn=Server.attention)
store = Paged()
store.layers = [l.attn for l in net.layers]
server = Server(net, store=store)
system = [3, 1, 4, 1]
for request in ([5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 9, 3]):
    prompt = (system if request[0] != 5 or request[1] == 9 else [2, 7, 1, 8]) + request
    past = store.begin(prompt)
    server.generate(torch.tensor([prompt[past:]]), 6, past)
    store.end(keep=False)
