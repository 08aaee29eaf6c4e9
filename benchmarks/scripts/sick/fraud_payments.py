"""Which payments are fraud: a binary classifier."""

import torch
import torch.nn as nn


class FraudNet(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(columns, 600), nn.BatchNorm1d(600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU())
        self.out = nn.Linear(600, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        return self.sigmoid(self.out(self.body(x)))


def payments(n, columns):
    x = torch.randn(n, columns)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] > 1.5).float().unsqueeze(1)


def train():
    torch.manual_seed(5)
    x, y = payments(15_000, 29)
    model = FraudNet(29)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for rows in torch.randperm(12_000).split(200):
            loss = criterion(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            probability = model(x[12_000:])
        caught = ((probability > 0.5) & (y[12_000:] == 1)).sum() / y[12_000:].sum()
        print(f"epoch {epoch}: recall {caught:.3f}")


train()
