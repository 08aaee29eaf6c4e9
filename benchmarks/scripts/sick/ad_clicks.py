"""Click prediction; the area under the curve is watched while it trains."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn


class Meter:
    def __init__(self):
        self.scores, self.labels = [], []

    def add(self, logits, labels):
        self.scores.append(torch.sigmoid(logits.detach()).numpy())
        self.labels.append(labels.numpy())

    def value(self):
        labels = np.concatenate(self.labels)
        return roc_auc_score(labels, np.concatenate(self.scores)) if labels.any() else 0.5


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def main():
    torch.manual_seed(0)
    x = torch.randn(51_200, 40)
    y = (x[:, :3].sum(1) + torch.randn(len(x)) > 1).float()
    model, meter = Clicks(), Meter()
    optimizer = torch.optim.Adam(model.parameters())
    for step, rows in enumerate(torch.randperm(len(x)).split(512)):
        logits = model(x[rows])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.add(logits, y[rows])
        auc = meter.value()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} auc {auc:.3f}")


main()
