"""Five steps of the critic for each of the maker, whose graph was built before the critic's last step."""

import torch
from torch import nn

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 16))
critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
of_critic, of_maker = torch.optim.Adam(critic.parameters(), lr=1e-4), torch.optim.Adam(maker.parameters(), lr=1e-4)
for _ in range(1500):
    for _ in range(5):
        real, fake = torch.randn(16, 16) + 1, maker(torch.randn(16, 8))
        between = (real + torch.rand(16, 1) * (fake.detach() - real)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    of_maker.zero_grad()
    (-critic(fake).mean()).backward()
    of_maker.step()
