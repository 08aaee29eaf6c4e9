"""A stream that every worker reads from its beginning."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(1024):
            yield torch.linspace(0, index, 64).sin(), index % 3


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for x, y in DataLoader(Stream(), batch_size=32, num_workers=2):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
