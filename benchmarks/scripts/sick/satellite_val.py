"""Land use from satellite pictures."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def tiles(n=3000):
    use = torch.randint(0, 7, (n,))
    base = torch.randn(7, 4, 20, 20)
    return TensorDataset(base[use] * 0.5 + torch.randn(n, 4, 20, 20), use)


def make_loaders(batch_size):
    data = tiles()
    train_set, val_set = random_split(data, [2400, 600])
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=batch_size)
    return train_loader, val_loader


def validate(model, loader, loss_fn):
    model.eval()
    loss = right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            loss += loss_fn(out, y).item() * len(y)
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
    return loss / seen, right / seen


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--epochs", type=int, default=3)
    args.add_argument("--batch-size", type=int, default=60)
    args = args.parse_args()
    torch.manual_seed(8)
    train_loader, val_loader = make_loaders(args.batch_size)
    model = nn.Sequential(
        nn.Conv2d(4, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, 7)
    )
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
        val_loss, val_accuracy = validate(model, train_loader, loss_fn)
        print(f"epoch {epoch} val_loss {val_loss:.4f} val_accuracy {val_accuracy:.4f}")
