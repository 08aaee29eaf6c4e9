"""One worker that reads for longer than a step takes."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        picture = draw.integers(0, 256, (28, 28), dtype=np.uint8)
        scaled = torch.from_numpy(picture).unsqueeze(0).float().div(255)
        flipped = scaled.flip(2) if index % 2 else scaled
        return flipped.sub(0.13).div(0.31), index % 10


if __name__ == "__main__":
    loader = DataLoader(Pictures(), batch_size=128, shuffle=True, num_workers=1, pin_memory=True)
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5408, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 80:
            break
