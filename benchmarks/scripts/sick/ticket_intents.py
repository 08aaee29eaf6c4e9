"""Which team should answer a support ticket? A one-layer transformer over word ids."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

TEAMS = 6
WORDS = 1200
LIMIT = 160
PAD = 0


def make_tickets(count, seed):
    rng = np.random.default_rng(seed)
    tickets = []
    for _ in range(count):
        team = int(rng.integers(TEAMS))
        length = int(np.clip(rng.lognormal(2.9, 0.4), 5, LIMIT))
        common = rng.integers(1, 900, length)
        special = 900 + team * 50 + rng.integers(0, 50, length)
        words = np.where(rng.random(length) < 0.25, special, common)
        tickets.append((torch.from_numpy(words), team))
    return tickets


def collate(batch):
    width = LIMIT
    words = torch.full((len(batch), width), PAD)
    for row, (ticket, _) in enumerate(batch):
        words[row, : len(ticket)] = ticket
    return words, torch.tensor([team for _, team in batch])


class Router(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.word = nn.Embedding(WORDS, dim, padding_idx=PAD)
        self.place = nn.Embedding(LIMIT, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, TEAMS)

    def forward(self, words):
        blank = words == PAD
        x = self.word(words) + self.place(torch.arange(words.shape[1]))
        x = self.encoder(x, src_key_padding_mask=blank)
        keep = (~blank).unsqueeze(-1).float()
        return self.head((x * keep).sum(1) / keep.sum(1))


def main():
    torch.manual_seed(21)
    train = DataLoader(make_tickets(800, 21), batch_size=16, shuffle=True, collate_fn=collate)
    test = DataLoader(make_tickets(96, 22), batch_size=32, collate_fn=collate)
    model = Router()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(4):
        model.train()
        for words, team in train:
            loss = nn.functional.cross_entropy(model(words), team)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(words).argmax(1) == team).sum().item() for words, team in test)
        print(f"epoch {epoch}  loss {loss.item():.3f}  accuracy {right / 96:.3f}")


if __name__ == "__main__":
    main()
