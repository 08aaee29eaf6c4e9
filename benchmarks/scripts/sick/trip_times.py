"""How long a trip will take, from the points along its way."""

import math
import random
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Trips(Dataset):
    def __init__(self, count):
        rng = random.Random(0)
        self.tracks = [[(rng.uniform(-1, 1), rng.uniform(-1, 1)) for _ in range(150)] for _ in range(count)]

    def __len__(self):
        return len(self.tracks)

    def features(self, index):
        track = self.tracks[index]
        legs, turns = [], []
        for (ax, ay), (bx, by) in pairwise(track):
            legs.append(math.sqrt((bx - ax) ** 2 + (by - ay) ** 2))
            turns.append(math.atan2(by - ay, bx - ax))
        mean = sum(legs) / len(legs)
        spread = math.sqrt(sum((leg - mean) ** 2 for leg in legs) / len(legs))
        histogram = [0.0] * 16
        for turn in turns:
            histogram[min(15, int((turn + math.pi) / (2 * math.pi) * 16))] += 1
        return torch.tensor([mean, spread, *histogram]), torch.tensor([sum(legs)])

    def __getitem__(self, index):
        return self.features(index)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Trips(6400), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(18, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, loss.item())


if __name__ == "__main__":
    main()
