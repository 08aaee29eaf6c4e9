"""A GAN that learns points on rings."""

import torch
from torch import nn


def rings(n):
    angle = torch.rand(n) * 6.2832
    radius = torch.randint(1, 3, (n,)).float()
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def mlp(i, o, width=512):
    return nn.Sequential(
        nn.Linear(i, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, o)
    )


class GAN:
    def __init__(self, latent=16):
        self.latent = latent
        self.generator, self.critic = mlp(latent, 2), mlp(2, 1)
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.bce = nn.BCEWithLogitsLoss()

    def train_critic(self, real):
        fake = self.generator(torch.randn(len(real), self.latent)).detach()
        loss = self.bce(self.critic(real), torch.ones(len(real), 1)) + self.bce(self.critic(fake), torch.zeros(len(real), 1))
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def train_generator(self, n):
        self.opt_g.zero_grad()
        loss = self.bce(self.critic(self.generator(torch.randn(n, self.latent))), torch.ones(n, 1))
        loss.backward()
        self.opt_g.step()
        return loss.item()


torch.manual_seed(0)
gan = GAN()
for step in range(200):
    d = gan.train_critic(rings(256))
    g = gan.train_generator(256)
    if step % 50 == 0:
        print(f"step {step} critic {d:.3f} generator {g:.3f}")
