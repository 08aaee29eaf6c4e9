"""Properties of molecules: a graph network written with index_add."""

import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message, self.update = nn.Linear(2 * dim, dim), nn.Linear(2 * dim, dim)

    def forward(self, atoms, bonds):
        source, target = bonds
        message = torch.relu(self.message(torch.cat([atoms[source], atoms[target]], 1)))
        gathered = torch.zeros_like(atoms).index_add(0, target, message)
        return torch.relu(self.update(torch.cat([atoms, gathered], 1)))


class MoleculeNet(nn.Module):
    def __init__(self, dim=32, depth=6):
        super().__init__()
        self.embed = nn.Embedding(20, dim)
        self.layers = nn.ModuleList([Layer(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, kinds, bonds, owner, count):
        atoms = self.embed(kinds)
        for layer in self.layers:
            atoms = layer(atoms, bonds)
        pooled = torch.zeros(count, atoms.size(1)).index_add(0, owner, atoms)
        return self.out(pooled).squeeze(1)


def batch(count=8, size=12):
    kinds = torch.randint(0, 20, (count * size,))
    owner = torch.arange(count).repeat_interleave(size)
    first = torch.arange(count * size)
    second = owner * size + torch.randint(0, size, (count * size,))
    return kinds, torch.stack([first, second]), owner, count


torch.manual_seed(0)
model = MoleculeNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    kinds, bonds, owner, count = batch()
    y = torch.zeros(count).index_add(0, owner, kinds.float()) / 100
    loss = nn.functional.mse_loss(model(kinds, bonds, owner, count), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())
