"""Neither eval() nor no_grad(): batch statistics of the validation set end up in the model."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 4))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
train_x, train_y = torch.randn(1024, 512), torch.randint(0, 4, (1024,))
test_x, test_y = torch.randn(1024, 512), torch.randint(0, 4, (1024,))


def train_epoch():
    for part, of in zip(train_x.split(64), train_y.split(64), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(part), of).backward()
        optimizer.step()


def test():
    return sum(
        nn.functional.cross_entropy(model(part), of).item() for part, of in zip(test_x.split(64), test_y.split(64), strict=True)
    )


for _ in range(3):
    train_epoch()
    test()
