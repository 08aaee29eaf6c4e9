"""Classifies small pictures of synthetic flowers with a convolutional network."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pictures(count, seed):
    made = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 5, (count,), generator=made)
    images = torch.randn(count, 3, 32, 32, generator=made)
    images[torch.arange(count), kinds % 3] += kinds[:, None, None].float() * 0.4
    return TensorDataset(images, kinds)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * 64, 5))

    def forward(self, x):
        return self.head(self.features(x))


def evaluate(model, loader):
    correct = total = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += len(y)
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    train = DataLoader(pictures(2560, 1), batch_size=64, shuffle=True)
    val = DataLoader(pictures(512, 2), batch_size=128)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} accuracy {evaluate(model, val):.3f}")


if __name__ == "__main__":
    main()
