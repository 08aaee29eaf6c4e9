"""The next product of a shopping session, from the products looked at so far."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

PRODUCTS = 3000
SHELVES = 60


def make_sessions(count, length):
    """Shoppers walk along one shelf, with now and then a jump to the neighbouring shelf."""
    per_shelf = PRODUCTS // SHELVES
    shelf = torch.randint(SHELVES, (count,))
    spot = torch.randint(per_shelf, (count,))
    seen = []
    for _ in range(length + 1):
        seen.append(shelf * per_shelf + spot)
        spot = (spot + torch.randint(1, 3, (count,))) % per_shelf
        shelf = (shelf + (torch.rand(count) < 0.05).long()) % SHELVES
    seen = torch.stack(seen, dim=1)
    return seen[:, :-1], seen[:, -1]


class SessionModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(PRODUCTS, dim)
        self.drop = nn.Dropout(0.1)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, PRODUCTS)

    def forward(self, seen):
        states, _ = self.gru(self.drop(self.embed(seen)))
        return self.out(states)[:, -1]


@torch.no_grad()
def hit_rate(model, seen, following, k=10):
    model.eval()
    best = torch.cat([model(part).topk(k, dim=1).indices for part in seen.split(64)])
    model.train()
    return (best == following[:, None]).any(dim=1).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()
    torch.manual_seed(31)
    seen, following = make_sessions(3200 + 128, args.length)
    train_seen, train_next, test_seen, test_next = seen[128:], following[128:], seen[:128], following[:128]
    model = SessionModel(args.dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    for epoch in range(args.epochs):
        running = 0.0
        for rows in torch.randperm(len(train_seen)).split(args.batch):
            loss = F.cross_entropy(model(train_seen[rows]), train_next[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item() * len(rows)
        rate = hit_rate(model, test_seen, test_next)
        print(f"epoch {epoch}: loss {running / len(train_seen):.3f}, hit@10 {rate:.3f}")


if __name__ == "__main__":
    main()
