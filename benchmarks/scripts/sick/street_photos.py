"""Photos of streets, flipped and shifted at random, read by two workers."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Streets(Dataset):
    def __init__(self, count, augment):
        rng = np.random.default_rng(4)
        self.pictures = rng.integers(0, 255, (count, 3, 36, 36), dtype=np.uint8)
        self.kinds = rng.integers(0, 4, count)
        self.augment = augment
        self.rng = np.random.default_rng(1234)

    def __len__(self):
        return len(self.kinds)

    def random_source(self):
        return self.rng

    def __getitem__(self, i):
        picture = self.pictures[i]
        if self.augment:
            rng = self.random_source()
            if rng.random() < 0.5:
                picture = picture[:, :, ::-1]
            top, left = rng.integers(0, 5, 2)
            picture = picture[:, top : top + 32, left : left + 32]
        else:
            picture = picture[:, 2:34, 2:34]
        return torch.from_numpy(picture.astype(np.float32) / 127.5 - 1.0), int(self.kinds[i])


def main():
    torch.manual_seed(0)
    loader = DataLoader(Streets(2048, True), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 4),
    )
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        for pictures, kinds in loader:
            loss = nn.functional.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, float(loss))


if __name__ == "__main__":
    main()
