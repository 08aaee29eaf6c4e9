"""Ratings of a book club: factors for readers and books, with a small tower on top."""

import torch
from torch import nn

READERS = 60_000
BOOKS = 140_000
DIM = 32


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader = nn.Embedding(READERS, DIM)
        self.book = nn.Embedding(BOOKS, DIM)
        for table in (self.reader, self.book):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, reader, book):
        return self.reader(reader), self.book(book)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, reader, book):
        return self.net(torch.cat([reader, book, reader * book], dim=1)).squeeze(1)


def make_ratings(count):
    """Readers and books belong to groups; who reads what is skewed towards the low numbers."""
    reader = (READERS * torch.rand(count) ** 2).long()
    book = (BOOKS * torch.rand(count) ** 3).long()
    liking = torch.randn(12, 20)
    stars = liking[reader % 12, book % 20] + 0.3 * torch.randn(count)
    return reader, book, stars / stars.std()


def main():
    torch.manual_seed(13)
    reader, book, stars = make_ratings(50_000)
    held = slice(0, 4000)
    train = [part[4000:] for part in (reader, book, stars)]
    tables, tower = Tables(), Tower()
    optimizers = [
        torch.optim.Adam(tables.parameters(), lr=1e-2, fused=True),
        torch.optim.Adam(tower.parameters(), lr=2e-3, fused=True),
    ]
    for epoch in range(2):
        for rows in torch.randperm(len(train[0])).split(512):
            who, what, rating = (part[rows] for part in train)
            loss = nn.functional.mse_loss(tower(*tables(who, what)), rating)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        with torch.no_grad():
            error = nn.functional.mse_loss(tower(*tables(reader[held], book[held])), stars[held]).item()
        print(f"epoch {epoch}: mse {loss.item():.3f}, held-out mse {error:.3f}")


if __name__ == "__main__":
    main()
