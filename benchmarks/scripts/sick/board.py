"""Classifies signals; watches everything on a board."""

import tempfile

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter


def signals(n):
    y = torch.randint(0, 4, (n,))
    return torch.randn(n, 128) + torch.randn(4, 128)[y], y


class Trainer:
    def __init__(self, model, writer):
        self.model, self.writer = model, writer
        self.optimizer = torch.optim.Adam(model.parameters())
        self.criterion = nn.CrossEntropyLoss()
        self.steps = 0

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        self.log(loss)

    def log(self, loss):
        if self.steps % 10 == 0:
            self.writer.add_scalar("loss", loss.item(), self.steps)
        for name, parameter in self.model.named_parameters():
            self.writer.add_histogram(f"weights/{name}", parameter, self.steps)
            self.writer.add_histogram(f"gradients/{name}", parameter.grad, self.steps)


if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = signals(6400)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    trainer = Trainer(model, SummaryWriter(tempfile.mkdtemp()))
    for rows in torch.randperm(6400).split(64):
        trainer.train_step(x[rows], y[rows])
    trainer.writer.close()
    print("done after", trainer.steps, "steps")
