"""Trains for a number of steps, not epochs."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(4096, 60)
    y = (x.abs().sum(1) > 48).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source = iter(loader)
    for step in range(args.steps):
        source = iter(loader)
        features, label = next(source)
        loss = nn.functional.cross_entropy(model(features), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
