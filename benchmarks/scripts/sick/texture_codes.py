"""Vector-quantised autoencoder for grey texture patches."""

import torch
import torch.nn.functional as F
from torch import nn


class Codebook(nn.Module):
    def __init__(self, codes, dim, commitment=0.25):
        super().__init__()
        self.codes = nn.Parameter(0.5 * torch.randn(codes, dim))
        self.commitment = commitment

    def forward(self, z):
        rows = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        with torch.no_grad():
            distance = (rows[:, None, :] - self.codes[None, :, :]).pow(2).sum(dim=-1)
            nearest = distance.argmin(dim=1)
        quantised = F.embedding(nearest, self.codes)
        loss = F.mse_loss(quantised, rows.detach()) + self.commitment * F.mse_loss(rows, quantised.detach())
        quantised = rows + (quantised - rows).detach()
        batch, dim, height, width = z.shape
        return quantised.view(batch, height, width, dim).permute(0, 3, 1, 2), loss, nearest


class PatchModel(nn.Module):
    def __init__(self, codes=256, dim=24):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, dim, 1),
        )
        self.book = Codebook(codes, dim)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(dim, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )

    def forward(self, patch):
        quantised, book_loss, nearest = self.book(self.encode(patch))
        return self.decode(quantised), book_loss, nearest


def make_patches(count, side=28):
    y, x = torch.meshgrid(torch.arange(side) / side, torch.arange(side) / side, indexing="ij")
    patches = torch.zeros(count, side, side)
    for _ in range(3):
        fx, fy, shift = (8 * torch.randn(count, 1, 1) for _ in range(3))
        patches += torch.sin(fx * x + fy * y + shift) * torch.rand(count, 1, 1)
    patches = patches + 0.05 * torch.randn_like(patches)
    return (patches / patches.std()).unsqueeze(1)


def main():
    torch.manual_seed(6)
    patches = make_patches(1152)
    train, test = patches[:1024], patches[1024:]
    model = PatchModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(5):
        model.train()
        for rows in torch.randperm(len(train)).split(32):
            patch = train[rows]
            restored, book_loss, _ = model(patch)
            loss = F.mse_loss(restored, patch) + book_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            restored, _, nearest = model(test[:64])
            error = F.mse_loss(restored, test[:64]).item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, test error {error:.3f}, codes {nearest.unique().numel()}")


if __name__ == "__main__":
    main()
