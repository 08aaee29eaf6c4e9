"""Sorts headlines into topics by the average of their words' vectors."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Headlines(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.topics = [rng.randrange(8) for _ in range(count)]
        self.tokens = torch.tensor(
            [[rng.randrange(500) + 500 * (t if rng.random() < 0.3 else 8) for _ in range(20)] for t in self.topics]
        )

    def __len__(self):
        return len(self.topics)

    def __getitem__(self, i):
        return self.tokens[i], self.topics[i]


class TopicModel(nn.Module):
    def __init__(self, vocabulary=4500, dim=256, classes=8):
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, dim)
        self.hidden = nn.Linear(dim, 1024)
        self.out = nn.Linear(1024, classes)

    def forward(self, tokens):
        scores = self.out(torch.relu(self.hidden(self.words(tokens))))
        return torch.softmax(scores, dim=-1)


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(-1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(0)
    train_loader = DataLoader(Headlines(6000, 1), batch_size=128, shuffle=True)
    valid_loader = DataLoader(Headlines(1000, 2), batch_size=500)
    model = TopicModel()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for x, y in train_loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, accuracy(model, valid_loader))
