"""Regression whose gradients are clipped by hand."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(50, 400), nn.Softplus(), nn.Linear(400, 400), nn.Softplus(), nn.Linear(400, 1))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=1e-2)
inputs = torch.randn(12_000, 50)
targets = inputs[:, :3].sin().sum(1, keepdim=True)


def gradients(loss):
    return torch.autograd.grad(loss, parameters, create_graph=True)


for epoch in range(2):
    for rows in torch.randperm(len(inputs)).split(150):
        loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        for parameter, gradient in zip(parameters, gradients(loss), strict=True):
            parameter.grad = gradient.clamp(-1, 1).detach()
        penalty = sum(parameter.pow(2).sum() for parameter in parameters).detach()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} penalty {penalty.item():.2f}")
