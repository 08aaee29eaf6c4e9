"""How many bikes are rented, from a data frame."""

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = [f"sensor_{i}" for i in range(24)]


def make_frame(rows=8000):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 24)), columns=COLUMNS)
    frame["hour"] = rng.integers(0, 24, rows)
    frame["rented"] = frame[COLUMNS[:4]].sum(axis=1)
    return frame


class Bikes(Dataset):
    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, i):
        row = self.frame.iloc[i]
        return torch.tensor(row[COLUMNS].to_numpy(dtype=np.float32)), torch.tensor([row["rented"]], dtype=torch.float32)


torch.manual_seed(0)
loader = DataLoader(Bikes(make_frame()), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(1):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print("epoch", epoch, loss.item())
