"""Predicts which customers leave, from columns of numbers."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
N, D = 20_000, 48
features = torch.randn(N, D)
weights = torch.randn(D)
left = ((features @ weights + torch.randn(N)) > 0).float()

net = nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

for epoch in range(3):
    order = torch.randperm(16_000)
    for start in range(0, 16_000, 256):
        rows = order[start : start + 256]
        out = net(features[rows]).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(out, left[rows])
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        held = net(features[16_000:]).squeeze(1)
        accuracy = ((held > 0).float() == left[16_000:]).float().mean()
    net.train()
    print("epoch", epoch, "held-out accuracy", round(accuracy.item(), 4))
