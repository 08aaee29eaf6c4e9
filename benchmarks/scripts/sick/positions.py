"""Tags words with a transformer encoder."""

import math

import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self, dim, length=96):
        super().__init__()
        self.dim, self.length = dim, length
        self.register_buffer("ready", self.table(length), persistent=False)

    def table(self, length):
        rows = []
        for position in range(length):
            row = []
            for i in range(self.dim):
                angle = position / 10_000 ** (2 * (i // 2) / self.dim)
                row.append(math.sin(angle) if i % 2 == 0 else math.cos(angle))
            rows.append(row)
        return torch.tensor(rows)

    def forward(self, x):
        return x + self.table(x.size(1))


class Tagger(nn.Module):
    def __init__(self, words=3000, dim=96, tags=12):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.positions = Positions(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 192, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(dim, tags)

    def forward(self, words):
        return self.out(self.encoder(self.positions(self.embed(words))))


def main():
    torch.manual_seed(0)
    words = torch.randint(0, 3000, (800, 96))
    tags = words % 12
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1):
        for rows in torch.randperm(800).split(8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words[rows]).transpose(1, 2), tags[rows])
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


main()
