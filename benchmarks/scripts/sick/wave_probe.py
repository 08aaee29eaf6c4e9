"""An encoder and a classifier of waves, trained together."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 32, 9, stride=2),
            nn.ReLU(),
            nn.Conv1d(32, 64, 9, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(8),
            nn.Flatten(),
        )

    def forward(self, wave):
        return self.layers(wave)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 3))

    def forward(self, wave):
        features = self.encoder(wave).detach()
        return self.head(features)


def waves(n):
    kind = torch.randint(0, 3, (n,))
    t = torch.linspace(0, 6.28, 400)
    return torch.sin(t * (kind[:, None] * 2 + 3) + torch.rand(n, 1) * 6)[:, None] + torch.randn(n, 1, 400), kind


def main(epochs=3):
    torch.manual_seed(2)
    x, y = waves(3000)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(2500).split(50):
            optimizer.zero_grad()
            loss = criterion(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(x[2500:]).argmax(1) == y[2500:]).float().mean().item()
        print(f"epoch {epoch + 1}/{epochs}: {right:.3f}")


if __name__ == "__main__":
    main()
