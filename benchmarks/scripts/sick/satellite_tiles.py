"""Four-band satellite tiles: which crop grows on the field?"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CROPS = ["wheat", "maize", "beet", "rape", "fallow"]


def make_fields(n, rng):
    spectra = rng.uniform(0.2, 0.8, (len(CROPS), 4, 1, 1))
    crop = rng.integers(0, len(CROPS), n)
    rows = np.sin(np.arange(32) * 0.9 + rng.uniform(0, 6, (n, 1)))[:, None, None, :]
    tiles = spectra[crop] * (1 + 0.2 * rows) + rng.normal(0, 0.25, (n, 4, 32, 32))
    return tiles.astype(np.float32), crop


class FieldTiles(Dataset):
    def __init__(self, tiles, crops, augment, seed=0):
        self.tiles, self.crops, self.augment = tiles, crops, augment
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, i):
        tile = self.tiles[i]
        if self.augment:
            tile = np.rot90(tile, self.rng.integers(4), axes=(1, 2))
        return np.ascontiguousarray(tile), int(self.crops[i])


def collate(items):
    tiles = torch.tensor([tile for tile, _ in items])
    crops = torch.tensor([crop for _, crop in items])
    return tiles, crops


class CropNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(4, width, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width, len(CROPS))

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(11)
    tiles, crops = make_fields(1200, np.random.default_rng(11))
    mean, std = tiles[:1000].mean((0, 2, 3), keepdims=True)[0], tiles[:1000].std((0, 2, 3), keepdims=True)[0]
    tiles = (tiles - mean) / std
    train = DataLoader(
        FieldTiles(tiles[:1000], crops[:1000], True), batch_size=args.batch_size, shuffle=True, collate_fn=collate
    )
    x_test, y_test = torch.from_numpy(tiles[1000:]), torch.from_numpy(crops[1000:])
    net = CropNet()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, fused=True)
    for epoch in range(args.epochs):
        net.train()
        for x, y in train:
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            accuracy = (net(x_test).argmax(1) == y_test).float().mean()
        print(f"[{epoch}] train loss {loss.item():.3f}, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
