"""Credit scores, with a record of every step."""

import json
import os
import tempfile
import time

import torch
from torch import nn


class AuditLog:
    def __init__(self, path):
        self.file = open(path, "w")  # noqa: SIM115

    def write(self, **values):
        self.file.write(json.dumps({"time": time.time(), **values}) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    torch.manual_seed(0)
    x = torch.randn(64_000, 40)
    y = (x[:, :5].sum(1) > 0).float()
    model = Scorer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = AuditLog(os.path.join(tempfile.mkdtemp(), "audit.jsonl"))
    step = 0
    for epoch in range(2):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            step += 1
            log.write(step=step, loss=loss.item())
        print("epoch", epoch, loss.item())


if __name__ == "__main__":
    main()
