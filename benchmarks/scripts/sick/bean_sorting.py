"""Sorts dry beans by sixteen measurements of their outline."""

import argparse

import torch
from torch import nn

KINDS = 7


def measure(count):
    kind = torch.randint(KINDS, (count,))
    latent = torch.randn(KINDS, 4)[kind] + 0.55 * torch.randn(count, 4)
    mixing = torch.randn(4, 16)
    outline = torch.tanh(latent @ mixing / 3) * torch.logspace(-1, 2, 16) + 0.05 * torch.randn(count, 16)
    return outline, kind


def build(width):
    return nn.Sequential(
        nn.Linear(16, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(width, KINDS),
    )


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        logits = model(x)
    return nn.functional.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def train(args):
    torch.manual_seed(args.seed)
    x, y = measure(3200)
    border = 2560
    x = (x - x[:border].mean(0)) / x[:border].std(0)
    model = build(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for rows in torch.randperm(border).split(args.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(rows)
        held_loss, accuracy = evaluate(model, x[border:], y[border:])
        print(f"{epoch:2d}  train {total / border:.4f}  held out {held_loss:.4f}  accuracy {accuracy:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=33)
    train(parser.parse_args())
