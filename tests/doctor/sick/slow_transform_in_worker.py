"""A worker is there, but one line of the transform holds everything up."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __len__(self):
        return 16 * 60

    def __getitem__(self, index):
        wave = torch.arange(128) * (index % 7 + 1)
        smooth = sum(math.sin(0.01 * k * index) * math.cos(k) for k in range(4000))
        return wave.float().sin() + smooth / 1e4, index % 5


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for x, y in DataLoader(Signals(), batch_size=16, num_workers=1, persistent_workers=True):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
