"""A new classifier on the features of a network that stays as it is."""

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )

    def forward(self, x):
        return self.stages(x)


class Borrowed(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(256, classes)

    def forward(self, x):
        features = self.backbone(x)
        return self.head(features)


def main():
    torch.manual_seed(0)
    model = Borrowed(Backbone(), 5)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    x = torch.randn(1280, 3, 32, 32)
    y = torch.randint(0, 5, (1280,))
    for epoch in range(2):
        for rows in torch.randperm(1280).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
