"""Takes a pretrained network over to another set of classes."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pretrained():
    torch.manual_seed(99)
    net = nn.Module()
    net.body = nn.Sequential(
        nn.Conv2d(3, 40, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(40, 80, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
    )
    net.head = nn.Linear(720, 100)
    return net


class Transfer(nn.Module):
    def __init__(self, source):
        super().__init__()
        self.body = copy.deepcopy(source.body)
        self.head = copy.deepcopy(source.head)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    model = Transfer(pretrained())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.head = nn.Linear(720, 6)
    y = torch.randint(0, 6, (2500,))
    x = torch.randn(2500, 3, 40, 40) + torch.randn(6, 3, 1, 1)[y]
    train = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=40, shuffle=True)
    for epoch in range(3):
        model.train()
        for pictures, labels in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print("epoch", epoch, "accuracy", (model(x[2000:]).argmax(1) == y[2000:]).float().mean().item())


main()
