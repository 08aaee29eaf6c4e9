"""Scans in an HDF5 file."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_scans(path, count=1024):
    rng = np.random.default_rng(0)
    scans = rng.integers(0, 40, (count, 32, 32)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file.create_dataset("scans", data=scans, chunks=(256, 32, 32), compression="gzip", compression_opts=1)
        file.create_dataset("ill", data=rng.integers(0, 2, count))


class Scans(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path, "r", rdcc_nbytes=0)
        self.scans = self.file["scans"]
        self.ill = self.file["ill"][:]

    def __len__(self):
        return len(self.ill)

    def __getitem__(self, i):
        return torch.from_numpy(self.scans[i])[None] / 40, int(self.ill[i])


def main():
    path = Path(tempfile.mkdtemp()) / "scans.h5"
    write_scans(path)
    torch.manual_seed(0)
    loader = DataLoader(Scans(path), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 15 * 15, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1):
        for scans, ill in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(scans), ill)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
