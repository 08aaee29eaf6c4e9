"""A small causal transformer that learns to write like a text."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F

block, width, heads, layers = 64, 128, 4, 2
text = "".join(f"{a} times {b} is {a * b}. " for a in range(60) for b in range(60))
letters = sorted(set(text))
code = {c: i for i, c in enumerate(letters)}
data = torch.tensor([code[c] for c in text])


def get_batch(batch_size=16):
    starts = torch.randint(len(data) - block - 1, (batch_size,)).tolist()
    x = torch.stack([data[i : i + block] for i in starts])
    y = torch.stack([data[i : i + block] for i in starts])
    return x, y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(len(letters), width)
        self.pos = nn.Embedding(block, width)
        self.register_buffer("places", torch.arange(block))
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.head = nn.Linear(width, len(letters))

    def forward(self, idx, targets):
        x = self.blocks(self.tok(idx) + self.pos(self.places))
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(1337)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(150):
    x, y = get_batch()
    logits, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}, perplexity {math.exp(loss.item()):.2f}")
