"""Orders of a shop, from its data base."""

import random
import sqlite3
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def fill(path, count=20_000):
    rng = random.Random(0)
    base = sqlite3.connect(path)
    base.execute("create table orders (number text, a real, b real, c real, d real, returned integer)")
    rows = [(f"A{n:06d}", *(rng.gauss(0, 1) for _ in range(4)), rng.randrange(2)) for n in range(count)]
    base.executemany("insert into orders values (?,?,?,?,?,?)", rows)
    base.commit()
    base.close()
    return [row[0] for row in rows]


class Orders(Dataset):
    def __init__(self, path, numbers):
        self.base = sqlite3.connect(path)
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        query = "select a, b, c, d, returned from orders where number = ?"
        *values, returned = self.base.execute(query, (self.numbers[i],)).fetchone()
        return torch.tensor(values), returned


def main():
    path = Path(tempfile.mkdtemp()) / "orders.db"
    numbers = fill(path)
    torch.manual_seed(0)
    loader = DataLoader(Orders(path, numbers), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())
        if step == 100:
            break


if __name__ == "__main__":
    main()
