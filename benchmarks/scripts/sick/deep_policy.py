"""Policy gradients on a toy track, with clipped gradients."""

import torch
from torch import nn


class Track:
    """The agent should steer towards zero."""

    def __init__(self, agents):
        self.state = torch.randn(agents, 4)

    def step(self, action):
        push = action.float()[:, None] - 1
        self.state = self.state * 0.95 + 0.1 * push + 0.05 * torch.randn_like(self.state)
        return -self.state.abs().sum(1)


class Policy(nn.Module):
    def __init__(self, depth=60):
        super().__init__()
        self.first = nn.Linear(4, 32)
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(depth)])
        self.last = nn.Linear(32, 3)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return self.last(x)


def clip(model, limit=1.0):
    for parameter in model.parameters():
        for row in parameter.grad.view(-1, parameter.grad.shape[-1]):
            norm = row.norm().item()
            if norm > limit:
                row.mul_(limit / norm)


def main(updates=80):
    torch.manual_seed(0)
    policy, track = Policy(), Track(64)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for update in range(updates):
        chosen = torch.distributions.Categorical(logits=policy(track.state))
        action = chosen.sample()
        reward = track.step(action)
        loss = -(chosen.log_prob(action) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        clip(policy)
        optimizer.step()
        if update % 20 == 0:
            print(update, reward.mean().item())


if __name__ == "__main__":
    main()
