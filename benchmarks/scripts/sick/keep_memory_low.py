"""An autoencoder for a machine with little memory."""

import gc

import torch
from torch import nn

torch.manual_seed(0)
catalogue = {f"item {i}": {"number": i, "tags": [i % 7, i % 11]} for i in range(60_000)}
items = torch.randn(12_800, 120)
model = nn.Sequential(
    nn.Linear(120, 64), nn.ReLU(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 120)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def tidy():
    gc.collect()


for epoch in range(1):
    for number, batch in enumerate(items.split(128)):
        rebuilt = model(batch)
        loss = (rebuilt - batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del rebuilt
        tidy()
        if number % 25 == 0:
            print(epoch, number, loss.item(), len(catalogue))
