"""The dataset holds a generator, and every worker gets a copy of it."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.rows = torch.randn(1024, 64)
        self.random = np.random.default_rng(0)

    def __len__(self):
        return len(self.rows) * 2

    def __getitem__(self, index):
        noise = self.random.normal(size=64).astype("float32")
        return self.rows[index % 1024] + torch.from_numpy(noise), index % 3


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for x, y in DataLoader(Noisy(), batch_size=32, num_workers=2):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
