"""A transformer in float32, with everything else as it should be."""

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(16, 512, 1024, device="cuda")
for _step in range(40):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
