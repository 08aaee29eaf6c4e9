"""Pictures are decoded one by one, in the process that trains."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self):
        self.raw = [torch.randint(0, 255, (3, 40, 40), dtype=torch.uint8) for _ in range(64)]

    def __len__(self):
        return 32 * 60

    def __getitem__(self, index):
        picture = self.raw[index % 64].float()
        picture = picture / 255
        left = int(torch.randint(0, 8, ()))
        picture = picture[:, left : left + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            picture = picture.flip(2)
        mean = picture.mean((1, 2), keepdim=True)
        deviation = picture.std((1, 2), keepdim=True)
        return (picture - mean) / deviation, index % 10


model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for x, y in DataLoader(Pictures(), batch_size=32, shuffle=True):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
