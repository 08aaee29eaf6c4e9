"""Is the parking bay free? Small colour crops of a camera above the car park."""

import numpy as np
import torch
from torch import nn

SIDE = 24


def crops(count, rng):
    """RGB crops as the camera delivers them: height x width x channel, one byte per channel."""
    taken = rng.integers(0, 2, count)
    light = rng.uniform(0.5, 1.0, (count, 1, 1, 1))
    ground = np.array([120, 120, 125]) + rng.normal(0, 12, (count, SIDE, SIDE, 1))
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    dx, dy = rng.normal(0, 0.12, (2, count, 1, 1))
    car = (np.abs(x - dx) < 0.55) & (np.abs(y - dy) < 0.75)
    window = (np.abs(x - dx) < 0.4) & (np.abs(y - dy - 0.35) < 0.12)
    paint = rng.uniform(40, 230, (count, 1, 1, 3))
    image = np.where((car & (taken[:, None, None] == 1))[..., None], paint, ground)
    image = np.where((window & (taken[:, None, None] == 1))[..., None], 30, image)
    image = light * image + rng.normal(0, 6, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8), taken.astype(np.float32)


def to_input(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float()


class BayNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(32 * 36, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))

    def forward(self, x):
        return self.head(self.features(x)).squeeze(1)


def main():
    torch.manual_seed(44)
    rng = np.random.default_rng(44)
    train_images, train_taken = crops(1600, rng)
    test_images, test_taken = crops(300, rng)
    x, y = to_input(train_images), torch.from_numpy(train_taken)
    test_x, test_y = to_input(test_images), torch.from_numpy(test_taken)
    model = BayNet()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(5):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(x)).split(40):
            loss = criterion(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        model.eval()
        with torch.no_grad():
            accuracy = ((model(test_x) > 0) == (test_y > 0.5)).float().mean().item()
        print(f"epoch {epoch}: loss {total / len(x):.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
