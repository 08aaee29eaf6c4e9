"""Plankton from an underwater camera: five groups, with batch normalisation and dropout."""

import torch
from torch import nn

GROUPS = 5
SIDE = 24


def photograph(count, generator):
    group = torch.randint(GROUPS, (count,), generator=generator)
    line = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(line, line, indexing="ij")
    shift = 0.2 * torch.randn(2, count, 1, 1, generator=generator)
    r, phi = torch.hypot(x - shift[0], y - shift[1]), torch.atan2(y - shift[1], x - shift[0])
    turn = 6.283 * torch.rand(count, 1, 1, generator=generator)
    arms = (group + 2).view(-1, 1, 1)
    body = torch.sigmoid(12 * (0.45 + 0.22 * torch.cos(arms * phi + turn) - r))
    return (body + 0.4 * torch.randn(body.shape, generator=generator)).unsqueeze(1), group


def stage(inputs, outputs):
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]


class PlanktonNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.features = nn.Sequential(*stage(1, width), *stage(width, 2 * width), nn.Dropout2d(0.1))
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(2 * width * 36, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, GROUPS)
        )

    def forward(self, x):
        return self.classifier(self.features(x))


@torch.no_grad()
def validate(model, images, groups):
    model.eval()
    return (model(images).argmax(1) == groups).float().mean().item()


def main():
    generator = torch.Generator().manual_seed(10)
    torch.manual_seed(10)
    images, groups = photograph(768, generator)
    val_images, val_groups = photograph(192, generator)
    mean, std = images.mean(), images.std()
    images, val_images = (images - mean) / std, (val_images - mean) / std
    model = PlanktonNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    criterion = nn.CrossEntropyLoss()

    model.train()
    for epoch in range(8):
        for rows in torch.randperm(len(images)).split(48):
            loss = criterion(model(images[rows]), groups[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = validate(model, val_images, val_groups)
        print(f"epoch {epoch}: loss {loss.item():.3f}, validation accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
