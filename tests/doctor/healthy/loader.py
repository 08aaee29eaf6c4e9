"""A DataLoader that hands out whole batches of a tensor."""

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Rows(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(5120, 512), torch.randint(0, 10, (5120,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):
        return self.x[rows], self.y[rows]


data = Rows()
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 256, drop_last=True), batch_size=None)
model = nn.Sequential(nn.Linear(512, 1536), nn.ReLU(), nn.Linear(1536, 10))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
