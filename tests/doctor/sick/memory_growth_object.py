"""A trainer that adds up its loss in an attribute."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.epoch_loss = torch.zeros(())

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.epoch_loss = self.epoch_loss + loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


trainer = Trainer()
for _ in range(40):
    trainer.step(torch.randn(128, 128), torch.randn(128, 1))
