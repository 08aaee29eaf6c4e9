"""GPT-2 124M as people write it: float32, AdamW, a DataLoader, the loss read now and then. Nothing of flatout is in here."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, count, context, vocabulary):
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, vocabulary, (count * context + 1,), generator=generator)
        self.count, self.context = count, context

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        piece = self.tokens[index * self.context : (index + 1) * self.context + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.attention(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--small", action="store_true", help="a tiny one, to try the script out")
    args = parser.parse_args()
    size = dict(vocabulary=97, context=64, layers=2, heads=2, width=64) if args.small else dict(
        vocabulary=50257, context=1024, layers=12, heads=12, width=768
    )  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = GPT2(**size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    data = Tokens(args.batch * args.steps, size["context"], size["vocabulary"])
    for step, (ids, targets) in enumerate(DataLoader(data, batch_size=args.batch, shuffle=True)):
        ids, targets = ids.to(device), targets.to(device)
        loss = model(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
