"""Galaxy morphology (elliptical, spiral, edge-on) from survey stamps that are kept in one archive on disk."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 32
KINDS = 3


def draw(kind, rng):
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    turn = rng.uniform(0, np.pi)
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    r, phi = np.hypot(u, v), np.arctan2(v, u)
    if kind == 0:
        light = np.exp(-6 * (u**2 + (v / 0.8) ** 2))
    elif kind == 1:
        light = np.exp(-3 * r) * (1 + np.cos(2 * phi - 9 * r)) / 2
    else:
        light = np.exp(-3 * u**2 - (v / 0.15) ** 2)
    return np.clip(light * rng.uniform(140, 220) + rng.normal(12, 6, light.shape), 0, 255).astype(np.uint8)


def write_survey(path, count, rng):
    kinds = rng.integers(0, KINDS, count)
    stamps = np.stack([draw(kind, rng) for kind in kinds])
    np.savez_compressed(path, stamps=stamps, kinds=kinds)
    rows = rng.permutation(count)
    train, test = rows[: int(0.8 * count)], rows[int(0.8 * count) :]
    return train, test, float(stamps[train].mean()), float(stamps[train].std())


class Stamps(Dataset):
    def __init__(self, path, rows, mean, std):
        self.path = path
        self.rows = rows
        self.mean, self.std = mean, std

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        with np.load(self.path) as archive:
            stamp, kind = archive["stamps"][row], archive["kinds"][row]
        stamp = (stamp.astype(np.float32) - self.mean) / self.std
        return torch.from_numpy(stamp).unsqueeze(0), int(kind)


def main():
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "survey.npz"
        train_rows, test_rows, mean, std = write_survey(path, 400, np.random.default_rng(3))
        train = DataLoader(Stamps(path, train_rows, mean, std), batch_size=16, shuffle=True)
        test = DataLoader(Stamps(path, test_rows, mean, std), batch_size=40)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, KINDS),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        for epoch in range(6):
            model.train()
            for stamps, kinds in train:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(stamps), kinds)
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                right = sum((model(stamps).argmax(1) == kinds).sum().item() for stamps, kinds in test)
            print(f"epoch {epoch}  loss {loss.item():.3f}  test accuracy {right / len(test_rows):.3f}")


if __name__ == "__main__":
    main()
