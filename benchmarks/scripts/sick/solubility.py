"""Solubility of small molecules from hashed fingerprints."""

import gc
import logging

import numpy as np
import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("solubility")


def fingerprints(count, bits=512, seed=19):
    rng = np.random.default_rng(seed)
    scaffold = rng.random((24, bits)) < 0.15
    which = rng.integers(0, 24, count)
    flips = rng.random((count, bits)) < 0.03
    prints = np.logical_xor(scaffold[which], flips).astype(np.float32)
    weight = rng.normal(0, 0.3, bits)
    solubility = prints @ weight + 0.8 * prints[:, 3] * prints[:, 40] + rng.normal(0, 0.1, count)
    return torch.from_numpy(prints), torch.from_numpy(solubility.astype(np.float32))


class Regressor(nn.Module):
    def __init__(self, bits, width=192, dropout=0.1):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(bits, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
        )

    def forward(self, prints):
        return self.layers(prints).squeeze(-1)


def fit(model, prints, target, valid, epochs=4, batch=64):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(prints)).split(batch):
            x, y = prints[rows], target[rows]
            loss = nn.functional.smooth_l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.item()
            del x, y, loss
            gc.collect()
        model.eval()
        with torch.no_grad():
            error = (model(valid[0]) - valid[1]).abs().mean().item()
        log.info("epoch %d  train loss %.4f  validation error %.4f", epoch, last, error)


def main():
    torch.manual_seed(19)
    prints, solubility = fingerprints(2800)
    train, valid = slice(0, 2560), slice(2560, None)
    mean, std = solubility[train].mean(), solubility[train].std()
    target = (solubility - mean) / std
    centred = prints - prints[train].mean(0)
    model = Regressor(prints.shape[1])
    fit(model, centred[train], target[train], (centred[valid], target[valid]))


if __name__ == "__main__":
    main()
