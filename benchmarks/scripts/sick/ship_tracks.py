"""What is the ship doing? Five activities from its track, with a transformer encoder."""

import math

import torch
from torch import nn

ACTIVITIES = 5
STEPS = 40


def sail(count):
    """Steps east and north, and speed; the activities differ in how the course changes with time."""
    activity = torch.randint(ACTIVITIES, (count,))
    wave = torch.sin(torch.arange(STEPS) * 0.5 + 6.283 * torch.rand(count, 1))
    noise = torch.randn(count, STEPS)
    bend = torch.stack([0.03 * noise, 0.15 + 0.05 * noise, 0.5 * wave, 0.6 * noise, 0.9 * wave.sign()], dim=1)
    bend = bend[torch.arange(count), activity]
    course = 6.283 * torch.rand(count, 1) + bend.cumsum(dim=1)
    speed = 1.0 + 0.2 * torch.randn(count, STEPS)
    return torch.stack([speed * course.cos(), speed * course.sin(), speed], dim=-1), activity


class Places(nn.Module):
    def __init__(self, dim):
        super().__init__()
        angle = torch.arange(STEPS)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(1000.0) / dim))
        self.register_buffer("table", torch.cat([angle.sin(), angle.cos()], dim=1))

    def forward(self, x):
        return x + self.table


class TrackModel(nn.Module):
    def __init__(self, dim=48, heads=4, layers=2):
        super().__init__()
        self.enter = nn.Linear(3, dim)
        self.places = Places(dim)
        layer = nn.TransformerEncoderLayer(dim, heads, dim_feedforward=2 * dim, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, ACTIVITIES)

    def forward(self, track):
        hidden = self.encoder(self.places(self.enter(track)))
        return self.head(hidden.mean(dim=1))


def main():
    torch.manual_seed(25)
    tracks, activity = sail(1536)
    border = 1280
    mean, std = tracks[:border].mean((0, 1)), tracks[:border].std((0, 1))
    tracks = (tracks - mean) / std
    model = TrackModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    for epoch in range(5):
        model.train()
        for rows in torch.randperm(border).split(32):
            loss = nn.functional.cross_entropy(model(tracks[rows]), activity[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(tracks[border:]).argmax(1) == activity[border:]).float().mean().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
