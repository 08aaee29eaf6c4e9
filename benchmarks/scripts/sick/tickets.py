"""Sends support tickets to the right desk with a small transformer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LONGEST = 384


class Tickets(Dataset):
    def __init__(self, count=480):
        g = torch.Generator().manual_seed(0)
        self.items = []
        for _ in range(count):
            desk = int(torch.randint(0, 4, (1,), generator=g))
            length = int(torch.randint(12, 40, (1,), generator=g))
            self.items.append((torch.randint(1 + desk * 400, 1200 + desk * 400, (length,), generator=g), desk))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    longest = LONGEST
    words = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, (ticket, _) in enumerate(batch):
        words[row, : len(ticket)] = ticket
    return words, torch.tensor([desk for _, desk in batch])


class Router(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(2500, dim, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True, dropout=0.1)
        self.out = nn.Linear(dim, 4)

    def forward(self, words):
        padding = words == 0
        x = self.layer(self.embed(words), src_key_padding_mask=padding)
        return self.out(x.masked_fill(padding[..., None], 0).sum(1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Tickets(), batch_size=8, shuffle=True, collate_fn=collate)
    model = Router()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(1):
        for words, desks in loader:
            loss = nn.functional.cross_entropy(model(words), desks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
