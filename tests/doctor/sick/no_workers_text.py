"""Sentences are split and looked up as they are needed; batches are dicts."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "slept", "until", "noon"] * 20
IDS = {word: number for number, word in enumerate(sorted(set(WORDS)))}


class Sentences(Dataset):
    def __len__(self):
        return 32 * 60

    def __getitem__(self, index):
        chooser = random.Random(index)
        sentence = " ".join(chooser.choices(WORDS, k=120))
        tokens = sentence.split()
        ids = [IDS[token] for token in tokens]
        lengths = sorted(len(token) for token in tokens)
        return {"ids": torch.tensor(ids), "label": sum(lengths) % 3}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(IDS), 64)
        self.out = nn.Sequential(nn.Linear(120 * 64, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, ids):
        return self.out(self.words(ids).flatten(1))


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for batch in DataLoader(Sentences(), batch_size=32):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch["ids"]), batch["label"]).backward()
    optimizer.step()
