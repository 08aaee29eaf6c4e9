"""Weather from a CSV file."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn


def write(path, rows=12_000):
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.normal(size=(rows, 30)), columns=[f"c{i}" for i in range(30)]).to_csv(path, index=False)


class Weather:
    def __init__(self, path):
        self.path = path
        self.kept = None

    def read(self):
        table = pd.read_csv(self.path)
        self.kept = torch.from_numpy(table.to_numpy(dtype=np.float32))
        return self.kept

    def batch(self, size):
        table = self.read()
        rows = torch.randint(0, len(table), (size,))
        return table[rows, 1:], table[rows, :1]


def main():
    path = Path(tempfile.mkdtemp()) / "weather.csv"
    write(path)
    torch.manual_seed(0)
    weather = Weather(path)
    model = nn.Sequential(nn.Linear(29, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(70):
        x, y = weather.batch(256)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
