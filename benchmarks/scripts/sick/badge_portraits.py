"""Age, glasses and mood from small portraits: one trunk, three heads."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

rng = np.random.default_rng(9)
torch.manual_seed(9)


def draw_portraits(count, side=32):
    age, glasses, mood = rng.uniform(-1, 1, count), rng.integers(0, 2, count), rng.integers(0, 3, count)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    shift = rng.normal(0, 0.08, (2, count, 1, 1))
    x, y = x[None] - shift[0], y[None] - shift[1]
    a, g, m = (v[:, None, None] for v in (age, glasses, mood))
    face = 1 / (1 + np.exp(20 * (np.hypot(x, y * 0.85) - 0.75)))
    hair = np.exp(-(((y + 0.75) / 0.2) ** 2))
    band = np.exp(-(((y + 0.2) / 0.07) ** 2)) * (np.abs(x) < 0.55)
    mouth = np.exp(-(((y - 0.45 + 0.5 * (m - 1) * x**2) / 0.06) ** 2)) * (np.abs(x) < 0.4)
    planes = [face + 0.5 * a * hair, face - 0.8 * g * band, face - 0.8 * mouth]
    image = np.stack(planes, axis=1) + rng.normal(0, 0.15, (count, 3, side, side))
    labels = age.astype(np.float32), glasses.astype(np.float32), mood
    return torch.from_numpy(image.astype(np.float32)), *(torch.from_numpy(v) for v in labels)


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())


class PortraitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(block(3, 16), block(16, 32), block(32, 64), nn.Flatten())
        self.age = nn.Linear(64 * 16, 1)
        self.glasses = nn.Linear(64 * 16, 1)
        self.mood = nn.Linear(64 * 16, 3)

    def forward(self, image):
        features = self.trunk(image)
        return self.age(features).squeeze(1), self.glasses(features).squeeze(1), self.mood(features)


image, age, glasses, mood = draw_portraits(1400)
mean, std = image[:1280].mean((0, 2, 3), keepdim=True), image[:1280].std((0, 2, 3), keepdim=True)
image = (image - mean) / std
test = slice(1280, None)
net = PortraitNet()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)

for epoch in range(5):
    net.train()
    for rows in torch.randperm(1280).split(32):
        faces = image[rows]
        loss = F.mse_loss(net(faces)[0], age[rows])
        loss = loss + F.binary_cross_entropy_with_logits(net(faces)[1], glasses[rows])
        loss = loss + F.cross_entropy(net(faces)[2], mood[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        years, worn, feeling = net(image[test])
        off = (years - age[test]).abs().mean()
        worn_right = ((worn > 0) == (glasses[test] > 0.5)).float().mean()
        mood_right = (feeling.argmax(1) == mood[test]).float().mean()
    print(f"epoch {epoch}: age off by {off:.3f}, glasses {worn_right:.3f}, mood {mood_right:.3f}")
