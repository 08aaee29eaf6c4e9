"""A convolutional network on 28x28 pictures, in the style of a first tutorial: everything at its default."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Pictures in memory; each is made a PIL image and then a tensor again, as torchvision's MNIST does it."""

    def __init__(self, count, seed):
        draw = np.random.default_rng(seed)
        self.labels = draw.integers(0, 10, count)
        self.pictures = draw.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for label in range(10):  # something to learn: a bright bar at a place of its own
            self.pictures[self.labels == label, 2 * label : 2 * label + 4, 4:24] += 150

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = Image.fromarray(self.pictures[index])
        tensor = torch.from_numpy(np.array(picture, copy=True)).unsqueeze(0).float().div(255)
        return tensor.sub_(0.1307).div_(0.3081), int(self.labels[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.hidden, self.out = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        x = F.relu(self.hidden(torch.flatten(self.drop1(x), 1)))
        return F.log_softmax(self.out(self.drop2(x)), dim=1)


def evaluate(model, device, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            right += (model(x).argmax(1) == y).sum().item()
    print(f"accuracy {right / len(loader.dataset):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--count", type=int, default=60_000)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = DataLoader(Digits(args.count, 0), batch_size=args.batch, shuffle=True)
    test = DataLoader(Digits(args.count // 6, 1), batch_size=1000)
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        for step, (x, y) in enumerate(train):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        evaluate(model, device, test)


if __name__ == "__main__":
    main()
