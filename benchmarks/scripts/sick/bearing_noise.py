"""Condition of a ball bearing from its vibration: sound, worn outer ring, worn inner ring, or broken ball."""

import torch
from torch import nn
from torch.nn import functional as F

STATES = 4
POINTS = 256


def vibrate(count):
    state = torch.randint(STATES, (count,))
    time = torch.arange(POINTS)
    gap = torch.tensor([1000.0, 37.0, 24.0, 51.0])[state][:, None] * (1 + 0.03 * torch.randn(count, 1))
    since = (time + 50 * torch.rand(count, 1)).remainder(gap)
    hits = torch.exp(-since / 5) * torch.sin(1.1 * since)
    hum = 0.4 * torch.sin(0.2 * time + 6.283 * torch.rand(count, 1))
    return (2.0 * hits + hum + 0.25 * torch.randn(count, POINTS)).unsqueeze(1), state


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, 15, stride=2, padding=7)
        self.conv2 = nn.Conv1d(width, 2 * width, 9, stride=2, padding=4)
        self.conv3 = nn.Conv1d(2 * width, 2 * width, 9, stride=2, padding=4)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return F.relu(self.conv3(x))


class BearingNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encoder = Encoder(width)
        self.classifier = nn.Sequential(nn.Linear(4 * width, 64), nn.ReLU(), nn.Linear(64, STATES))

    def forward(self, x):
        h = self.encoder(x).data
        pooled = torch.cat([h.mean(dim=2), h.amax(dim=2)], dim=1)
        return self.classifier(pooled)


def main():
    torch.manual_seed(20)
    x, y = vibrate(1280 + 256)
    x = (x - x[:1280].mean()) / x[:1280].std()
    x_train, y_train, x_test, y_test = x[:1280], y[:1280], x[1280:], y[1280:]
    net = BearingNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    print(f"{sum(p.numel() for p in net.parameters())} parameters")
    for epoch in range(5):
        net.train()
        total = 0.0
        for rows in torch.randperm(len(x_train)).split(32):
            loss = F.cross_entropy(net(x_train[rows]), y_train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        net.eval()
        with torch.no_grad():
            accuracy = (net(x_test).argmax(dim=1) == y_test).float().mean().item()
        print(f"epoch {epoch}: loss {total / len(x_train):.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
