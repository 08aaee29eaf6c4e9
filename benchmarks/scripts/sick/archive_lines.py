"""Clicks from an archive that is kept compressed."""

import gzip
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_archive(lines=4000):
    rng = random.Random(0)
    path = tempfile.mkstemp(suffix=".csv.gz")[1]
    with gzip.open(path, "wt", compresslevel=3) as file:
        for _ in range(lines):
            file.write(",".join(f"{rng.gauss(0, 1):.4f}" for _ in range(12)) + f",{rng.randrange(2)}\n")
    return path, lines


class Clicks(Dataset):
    def __init__(self, path, lines):
        self.path, self.lines = path, lines

    def __len__(self):
        return self.lines

    def __getitem__(self, wanted):
        with gzip.open(self.path, "rt") as file:
            for number, line in enumerate(file):  # noqa: B007
                if number == wanted:
                    break
        *values, clicked = line.split(",")
        return torch.tensor([float(v) for v in values]), torch.tensor(float(clicked))


def main():
    torch.manual_seed(0)
    data = Clicks(*write_archive())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, clicked) in enumerate(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).flatten(), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 80:
            break
    print("loss", loss.item())


if __name__ == "__main__":
    main()
