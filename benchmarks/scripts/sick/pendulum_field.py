"""Learns the vector field of a damped pendulum from observed trajectories, with RK4 through a small network."""

import math

import torch
from torch import nn

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)

DT = 0.1
HORIZON = 10


class Field(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, state):
        return self.net(state)


def pendulum(state):
    angle, speed = state.unbind(-1)
    return torch.stack([speed, -2.0 * torch.sin(angle) - 0.15 * speed], dim=-1)


def rk4(field, state, steps):
    path = [state]
    for _ in range(steps):
        k1 = field(state)
        k2 = field(state + 0.5 * DT * k1)
        k3 = field(state + 0.5 * DT * k2)
        k4 = field(state + DT * k3)
        state = state + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(state)
    return torch.stack(path, dim=1)


def observe(count, length):
    start = torch.stack([torch.empty(count).uniform_(-2.0, 2.0), torch.empty(count).uniform_(-1.0, 1.0)], dim=-1)
    with torch.no_grad():
        return rk4(pendulum, start, length)


def windows(paths, batch):
    which = torch.randint(len(paths), (batch, 1))
    first = torch.randint(paths.shape[1] - HORIZON, (batch, 1))
    return paths[which, first + torch.arange(HORIZON + 1)]


train_paths = observe(64, 60)
train_paths = train_paths + 0.01 * torch.randn_like(train_paths)
test_paths = observe(32, 40)

field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=5e-3, fused=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)

for step in range(200):
    batch = windows(train_paths, 128)
    predicted = rk4(field, batch[:, 0], HORIZON)
    loss = (predicted - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 49:
        with torch.no_grad():
            far = rk4(field, test_paths[:, 0], test_paths.shape[1] - 1)
            error = math.sqrt((far - test_paths).square().mean().item())
        print(f"step {step + 1:4d}  loss {loss.item():.5f}  rollout error {error:.4f}")
