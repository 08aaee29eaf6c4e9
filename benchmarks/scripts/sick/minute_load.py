"""Forecast of the electric load of a town, a quarter of an hour ahead, from minute readings of one year."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAST, AHEAD = 120, 15


def year_of_minutes(seed):
    rng = np.random.default_rng(seed)
    minute = np.arange(365 * 24 * 60)
    load = 2 + np.sin(2 * np.pi * minute / 1440 - 2) + 0.4 * np.sin(4 * np.pi * minute / 1440)
    load += 0.5 * np.cos(2 * np.pi * minute / minute.size) + 0.2 * ((minute // 1440) % 7 < 5)
    gusts = np.convolve(rng.normal(0, 1, minute.size + 59), np.hanning(60) / 30, mode="valid")
    return (load + 0.4 * gusts).astype(np.float32)


class Windows(Dataset):
    def __init__(self, load):
        self.load = torch.from_numpy(load)

    def __len__(self):
        return len(self.load) - PAST - AHEAD

    def __getitem__(self, start):
        piece = self.load[start : start + PAST + AHEAD]
        return piece[:PAST], piece[PAST:]


class Forecaster(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, channels, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.out = nn.Linear(channels * PAST // 4, AHEAD)

    def forward(self, past):
        return past[:, -1:] + self.out(self.conv(past.unsqueeze(1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(1)

    load = year_of_minutes(1)
    border = int(0.9 * len(load))
    load = (load - load[:border].mean()) / load[:border].std()
    loader = DataLoader(Windows(load[:border]), batch_size=args.batch, shuffle=True)
    recent = Windows(load[border:])
    test_past, test_next = (torch.stack(part) for part in zip(*(recent[i] for i in range(0, len(recent), 100)), strict=False))

    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    for step in range(args.steps):
        past, following = next(iter(loader))
        loss = nn.functional.l1_loss(model(past), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 60 == 0:
            with torch.no_grad():
                error = nn.functional.l1_loss(model(test_past), test_next).item()
            print(f"step {step + 1}: train {loss.item():.4f}, test {error:.4f}")


if __name__ == "__main__":
    main()
