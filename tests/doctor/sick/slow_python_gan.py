"""Two networks, two optimizers, and a queue that is sorted by hand."""

import torch
from torch import nn

real = torch.randn(2048, 32)
generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
for_generator = torch.optim.SGD(generator.parameters(), lr=0.01, fused=True)
for_critic = torch.optim.SGD(critic.parameters(), lr=0.01, fused=True)


def replay(queue):
    for at in range(len(queue)):
        queue[at] = (queue[at] * 31 + at) % 1009
    return queue


queue = list(range(60_000))
for step in range(45):
    rows = torch.arange(step * 64, step * 64 + 64) % len(real)
    with torch.no_grad():
        fake = generator(torch.randn(64, 8))
    for_critic.zero_grad()
    (critic(fake).mean() - critic(real[rows]).mean()).backward()
    for_critic.step()
    for_generator.zero_grad()
    (-critic(generator(torch.randn(64, 8))).mean()).backward()
    for_generator.step()
    queue = replay(queue)
