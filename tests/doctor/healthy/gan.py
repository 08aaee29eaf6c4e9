"""Two networks in turn, the critic twice as often."""

import torch
from torch import nn

real = torch.randn(2048, 256)
generator = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 256))
critic = nn.Sequential(nn.Linear(256, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1))
for_generator = torch.optim.SGD(generator.parameters(), lr=1e-3, fused=True)
for_critic = torch.optim.SGD(critic.parameters(), lr=1e-3, fused=True)
for step in range(36):
    for half in range(2):
        rows = torch.arange((2 * step + half) * 256, (2 * step + half) * 256 + 256) % len(real)
        with torch.no_grad():
            fake = generator(torch.randn(256, 64))
        for_critic.zero_grad()
        (critic(fake).mean() - critic(real[rows]).mean()).backward()
        for_critic.step()
    for_generator.zero_grad()
    (-critic(generator(torch.randn(256, 64))).mean()).backward()
    for_generator.step()
