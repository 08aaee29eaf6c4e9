"""Six gestures from the accelerometer of a watch; one recording session per gesture."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GESTURES = ["rest", "wave", "circle", "clap", "turn", "shake"]
SAMPLES = 50


def record(gesture, count, rng):
    """Windows of one session: the watch is worn a little differently in every window."""
    t = np.arange(SAMPLES) / 25
    pace = 0.4 + 0.55 * gesture + rng.normal(0, 0.06, (count, 1, 1))
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1)) + np.array([0, 0.5, 1.0])[:, None] * gesture
    strength = (0.2 + 0.15 * gesture) * rng.lognormal(0, 0.3, (count, 3, 1))
    motion = strength * np.sin(2 * np.pi * pace * t + phase)
    return (motion + rng.normal(0, 0.25, motion.shape)).astype(np.float32)


def sessions(per_gesture, rng):
    windows = np.concatenate([record(g, per_gesture, rng) for g in range(len(GESTURES))])
    labels = np.repeat(np.arange(len(GESTURES)), per_gesture)
    return torch.from_numpy(windows), torch.from_numpy(labels)


class GestureNet(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, channels, 7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(channels, 2 * channels, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8 * channels, len(GESTURES)))

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(16)
    rng = np.random.default_rng(16)
    train_x, train_y = sessions(200, rng)
    test_x, test_y = sessions(40, rng)
    mean, std = train_x.mean((0, 2), keepdim=True), train_x.std((0, 2), keepdim=True)
    train_set = TensorDataset((train_x - mean) / std, train_y)
    test_x = (test_x - mean) / std
    train_loader = DataLoader(train_set, batch_size=40)

    model = GestureNet()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(8):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        print(f"epoch {epoch}: last loss {loss.item():.3f}, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
