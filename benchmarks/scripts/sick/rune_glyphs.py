"""Recognises ten hand-scratched runes on 16 x 16 rubbings."""

import torch
import torch.nn.functional as F
from torch import nn

RUNES = 10
SIDE = 16


def scratch(count, templates):
    label = torch.randint(RUNES, (count,))
    image = templates[label]
    dx, dy = torch.randint(-2, 3, (2, count)).tolist()
    image = torch.stack([torch.roll(one, (a, b), dims=(0, 1)) for one, a, b in zip(image, dx, dy, strict=False)])
    return (image + 0.35 * torch.randn_like(image)).unsqueeze(1), label


def make_templates():
    smooth = F.interpolate(torch.randn(RUNES, 1, 6, 6), size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return (smooth.squeeze(1) > 0.15).float()


class RuneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.2)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, RUNES)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = self.drop(F.relu(self.fc1(x.flatten(1))))
        return F.softmax(self.fc2(x), dim=1)


def train_epoch(model, criterion, optimizer, x, y, batch_size=32):
    model.train()
    total = 0.0
    for rows in torch.randperm(len(x)).split(batch_size):
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
    return total / len(x)


def test(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


def main():
    torch.manual_seed(23)
    templates = make_templates()
    x_train, y_train = scratch(1600, templates)
    x_test, y_test = scratch(320, templates)
    mean, std = x_train.mean(), x_train.std()
    x_train, x_test = (x_train - mean) / std, (x_test - mean) / std
    model = RuneNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(1, 7):
        loss = train_epoch(model, criterion, optimizer, x_train, y_train)
        print(f"Epoch {epoch}: loss {loss:.4f}, test accuracy {test(model, x_test, y_test):.4f}")


if __name__ == "__main__":
    main()
