"""Goes through the loans one after another."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Credit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x):
        return self.layers(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(6000, 24)
    y = (x[:, 0] > x[:, 1]).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=1, shuffle=True)
    model = Credit()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(1):
        for features, label in loader:
            optimizer.zero_grad()
            loss = criterion(model(features), label)
            loss.backward()
            optimizer.step()
        print("epoch", epoch, loss.item())
