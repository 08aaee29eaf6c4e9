"""The teacher is an average of the student's weights, and has no optimizer."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=3000)
for _ in range(3000):
    x = torch.randn(16, 16)
    with torch.no_grad():
        target = (teacher(x + 0.1 * torch.randn_like(x)) / 0.5).softmax(1)
    loss = F.cross_entropy(student(x + 0.1 * torch.randn_like(x)), target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    with torch.no_grad():
        for average, weight in zip(teacher.parameters(), student.parameters(), strict=True):
            average.mul_(0.99).add_(weight, alpha=0.01)
