"""Autoencoder for small line sketches; the run can be taken up again from the file last.pt."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    side: int = 28
    sketches: int = 1024
    batch: int = 32
    epochs: int = 5
    lr: float = 1e-3
    code: int = 48


def make_sketches(count, side):
    """Each sketch is a closed curve with a few random harmonics, drawn with soft edges."""
    grid = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    phi, r = torch.atan2(y, x), torch.hypot(x, y)
    radius = 0.55 + 0.1 * torch.randn(count, 1, 1)
    for k in range(2, 5):
        amount, shift = 0.12 * torch.randn(count, 1, 1), 6.283 * torch.rand(count, 1, 1)
        radius = radius + amount * torch.cos(k * phi + shift)
    return torch.exp(-(((r - radius) / 0.07) ** 2)).flatten(1)


class AutoEncoder(nn.Module):
    def __init__(self, pixels, code):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, 512), nn.ReLU(), nn.Linear(512, code))
        self.decoder = nn.Sequential(nn.Linear(code, 512), nn.ReLU(), nn.Linear(512, pixels))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def train(config, folder):
    data = make_sketches(config.sketches + 128, config.side)
    train_set, held_out = data[: config.sketches], data[config.sketches :]
    model = AutoEncoder(config.side**2, config.code)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    step = 0
    for epoch in range(config.epochs):
        model.train()
        for rows in torch.randperm(len(train_set)).split(config.batch):
            x = train_set[rows]
            loss = F.binary_cross_entropy_with_logits(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "last.pt")
        model.eval()
        with torch.no_grad():
            held = F.binary_cross_entropy_with_logits(model(held_out), held_out).item()
        print(f"epoch {epoch}  step {step}  train {loss.item():.4f}  held out {held:.4f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as name:
        train(Config(), Path(name))
