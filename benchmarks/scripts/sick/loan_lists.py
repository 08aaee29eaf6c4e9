"""Loans as the bank's export gives them: lists of numbers."""

import torch
from torch import nn


class Export:
    def __init__(self, loans, columns):
        made = torch.randn(loans, columns)
        self.table = made
        self.answer = (made[:, 0] > 0).float()

    def batches(self, size):
        for rows in torch.randperm(len(self.table)).split(size):
            yield self.table[rows], self.answer[rows]


def as_input(values):
    return torch.tensor([[float(v) for v in row] for row in values.tolist()])


def main():
    torch.manual_seed(0)
    export = Export(12_800, 300)
    model = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1):
        for values, answer in export.batches(128):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(as_input(values)).squeeze(1), answer)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


main()
