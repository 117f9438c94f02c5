# SPDX-License-Identifier: Apache-2.0
"""Training of the monitors' tests, for the real msprobe and for rankprobe."""

# Of a script that has imported torch.
NET = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x, scale=None):
        return x + self.fc(self.norm(x)) * (1 if scale is None else scale)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=torch.ones(8))
        return self.head(torch.relu(x))
"""
