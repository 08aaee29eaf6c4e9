"""A GAN of small faces that shows what it learned."""

import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn

folder = Path(tempfile.mkdtemp())


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 3 * 24 * 24), nn.Tanh())

    def forward(self, z):
        return self.net(z).view(-1, 3, 24, 24)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def forward(self, x):
        return self.net(x)


def save_samples(generator, noise, step):
    with torch.no_grad():
        pictures = generator(noise)
    grid = torch.cat([torch.cat(list(row), 2) for row in pictures.split(8)], 1)
    pixels = ((grid + 1) * 127.5).byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).resize((768, 768)).save(folder / f"{step:05d}.png")


def main():
    torch.manual_seed(0)
    faces = torch.tanh(torch.randn(2000, 3, 24, 24))
    generator, critic = Generator(), Critic()
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    c_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4)
    bce, fixed = nn.functional.binary_cross_entropy_with_logits, torch.randn(64, 32)
    for step in range(80):
        real = faces[torch.randint(0, 2000, (64,))]
        fake = generator(torch.randn(64, 32))
        c_optimizer.zero_grad()
        c_loss = bce(critic(real), torch.ones(64, 1)) + bce(critic(fake.detach()), torch.zeros(64, 1))
        c_loss.backward()
        c_optimizer.step()
        g_optimizer.zero_grad()
        g_loss = bce(critic(fake), torch.ones(64, 1))
        g_loss.backward()
        g_optimizer.step()
        save_samples(generator, fixed, step)
        if step % 20 == 0:
            print(step, c_loss.item(), g_loss.item())


main()
