"""Trains on a folder of PNG files."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_folder(root, count=240):
    rng = np.random.default_rng(0)
    for i in range(count):
        small = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(small).resize((384, 384)).save(root / f"{i % 3}_{i:04d}.png", compress_level=1)


class Folder(Dataset):
    def __init__(self, root, size=32):
        self.paths = sorted(root.glob("*.png"))
        self.size = size

    def __len__(self):
        return len(self.paths)

    def load(self, path):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((self.size, self.size)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255

    def __getitem__(self, i):
        return self.load(self.paths[i]), int(self.paths[i].name[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    write_folder(root)
    torch.manual_seed(0)
    loader = DataLoader(Folder(root), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
