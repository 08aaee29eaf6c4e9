"""Ten digits, a decaying learning rate."""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR


def get_data(n):
    y = torch.randint(0, 10, (n,))
    prototypes = torch.randn(10, 1, 28, 28)
    return prototypes[y] + 1.5 * torch.randn(n, 1, 28, 28), y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.fc1 = nn.Linear(32 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def train(model, optimizer, scheduler, data, target, epoch):
    model.train()
    for batch_idx, idx in enumerate(torch.randperm(len(data)).split(64)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[idx]), target[idx])
        loss.backward()
        optimizer.step()
        scheduler.step()
        if batch_idx % 20 == 0:
            print(f"epoch {epoch} [{batch_idx}] loss {loss.item():.4f}")


def test(model, data, target):
    model.eval()
    with torch.no_grad():
        return (model(data).argmax(1) == target).float().mean().item()


def main():
    torch.manual_seed(1)
    data, target = get_data(4500)
    epochs = 4
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, epochs + 1):
        train(model, optimizer, scheduler, data[:4000], target[:4000], epoch)
        print("accuracy", test(model, data[4000:], target[4000:]))


if __name__ == "__main__":
    main()
