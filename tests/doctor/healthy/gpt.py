"""A small language model."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, 128), nn.Embedding(64, 128)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.out = nn.Linear(128, 256)

    def forward(self, ids):
        hidden = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.out(hidden)


text = torch.randint(0, 256, (100_000,))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(36):
    at = torch.arange(24)[:, None] * 1000 + step + torch.arange(65)
    batch = text[at]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
