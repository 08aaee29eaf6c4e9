"""A language model with attention and a loss over many words, both written by hand."""

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
WORDS, PLACES, WIDTH, HEADS = 4200, 40, 32, 2


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, WORDS)
        self.register_buffer("mask", torch.tril(torch.ones(PLACES, PLACES)).view(1, 1, PLACES, PLACES))

    def forward(self, text):
        rows, places = text.shape
        x = self.words(text) + self.places.weight[:places]
        q, k, v = (one(x).view(rows, places, HEADS, -1).transpose(1, 2) for one in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        weights = weights.masked_fill(self.mask[:, :, :places, :places] == 0, float("-inf"))
        self.looked_at = self.drop(F.softmax(weights, dim=-1))
        return self.head(x + (self.looked_at @ v).transpose(1, 2).reshape(rows, places, WIDTH))


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(400):
    text = (torch.randint(0, 9, (8, PLACES + 1 - step % 3)) ** 2).cumsum(1) % WORDS
    logits = model(text[:, :-1])
    loss = F.cross_entropy(logits.view(-1, WORDS), text[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
