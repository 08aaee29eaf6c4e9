"""Two optimizers: the judge learns from real and made rows, then the maker from the judge."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 16))
judge = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
centers = torch.randn(4, 16)
for _ in range(3000):
    real = centers[torch.randint(0, 4, (16,))] + 0.1 * torch.randn(16, 16)
    fake = maker(torch.randn(16, 8))
    of_judge.zero_grad()
    of_real, of_fake = judge(real), judge(fake.detach())
    F.binary_cross_entropy_with_logits(of_real, torch.ones_like(of_real)).backward()
    F.binary_cross_entropy_with_logits(of_fake, torch.zeros_like(of_fake)).backward()
    of_judge.step()
    of_maker.zero_grad()
    of_fake = judge(fake)
    F.binary_cross_entropy_with_logits(of_fake, torch.ones_like(of_fake)).backward()
    of_maker.step()
