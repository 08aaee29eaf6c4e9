"""One small head for every shop of a chain."""

import torch
from torch import nn


class Shops(nn.Module):
    def __init__(self, shops=1200, inputs=16):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(inputs) * 0.1) for _ in range(shops)])
        self.offsets = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(shops)])

    def forward(self, x):
        weights = torch.stack(list(self.weights))
        offsets = torch.cat(list(self.offsets))
        return torch.einsum("bsi,si->bs", x, weights) + offsets


def main(steps=80):
    torch.manual_seed(0)
    model = Shops()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    truth = torch.randn(1200, 16)
    for step in range(steps):
        x = torch.randn(8, 1200, 16)
        y = (x * truth).sum(-1)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
