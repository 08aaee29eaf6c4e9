"""Which songs go together: one vector for every song of a large catalogue."""

import torch
from torch import nn
from torch.nn.functional import logsigmoid


class Songs(nn.Module):
    def __init__(self, count=200_000, dim=32):
        super().__init__()
        self.vectors = nn.Embedding(count, dim)
        nn.init.normal_(self.vectors.weight, std=0.1)

    def forward(self, left, right):
        return (self.vectors(left) * self.vectors(right)).sum(-1)


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def main(steps=80):
    torch.manual_seed(0)
    model = Songs()
    optimizer = make_optimizer(model)
    for step in range(steps):
        left = torch.randint(0, 200_000, (512,))
        loss = -(logsigmoid(model(left, (left + 1) % 200_000)) + logsigmoid(-model(left, left.roll(1)))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


main()
