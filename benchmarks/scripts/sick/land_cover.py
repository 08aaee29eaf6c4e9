"""Land cover maps: a small fully convolutional net, followed by the mean intersection over union."""

import torch
from torch import nn
from torch.nn import functional as F

COVERS = 4
SIDE = 24


class CoverNet(nn.Module):
    def __init__(self, bands=4, width=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(bands, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, COVERS, 1),
        )

    def forward(self, x):
        return self.layers(x)


def make_maps(count):
    rough = torch.randn(count, COVERS, 5, 5)
    cover = F.interpolate(rough, size=(SIDE, SIDE), mode="bicubic", align_corners=True).argmax(1)
    spectra = torch.randn(COVERS, 4)
    tiles = spectra[cover].permute(0, 3, 1, 2) + 0.9 * torch.randn(count, 4, SIDE, SIDE)
    return tiles, cover


class IntersectionOverUnion:
    def __init__(self):
        self.matrix = torch.zeros(COVERS, COVERS)

    def update(self, predicted, cover):
        for t, p in zip(cover.flatten(), predicted.flatten(), strict=False):
            self.matrix[t, p] += 1

    def mean(self):
        hit = self.matrix.diagonal()
        return (hit / (self.matrix.sum(0) + self.matrix.sum(1) - hit).clamp(min=1)).mean().item()


def run_epoch(model, tiles, cover, optimizer=None, batch=6):
    training = optimizer is not None
    model.train(training)
    score, total = IntersectionOverUnion(), 0.0
    order = torch.randperm(len(tiles)) if training else torch.arange(len(tiles))
    with torch.set_grad_enabled(training):
        for rows in order.split(batch):
            logits = model(tiles[rows])
            loss = F.cross_entropy(logits, cover[rows])
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(rows)
            score.update(logits.argmax(1), cover[rows])
    return total / len(tiles), score.mean()


if __name__ == "__main__":
    torch.manual_seed(14)
    tiles, cover = make_maps(270)
    mean, std = tiles[:240].mean((0, 2, 3), keepdim=True), tiles[:240].std((0, 2, 3), keepdim=True)
    tiles = (tiles - mean) / std
    model = CoverNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(4):
        loss, iou = run_epoch(model, tiles[:240], cover[:240], optimizer)
        test_loss, test_iou = run_epoch(model, tiles[240:], cover[240:])
        print(f"epoch {epoch}  loss {loss:.3f} iou {iou:.3f}  |  test loss {test_loss:.3f} iou {test_iou:.3f}")
