"""A small convolutional network for images of any size from 1 x 1 up."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from flatout.base.errors import ModelError


class ConvNet(nn.Module):
    def __init__(self, input_shape: Sequence[int], outputs: int, channels: Sequence[int], hidden: int, dropout: float) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3):
            raise ModelError(
                f"convnet needs images, (height, width) or (channels, height, width) per row; got {tuple(input_shape)}: "
                "use mlp for other data"
            )
        depth, height, width = input_shape if len(input_shape) == 3 else (1, *input_shape)
        layers: list[nn.Module] = []
        for deeper in channels:
            layers += [nn.Conv2d(depth, deeper, kernel_size=3, padding=1), nn.ReLU()]
            depth = deeper
            if min(height, width) >= 2:  # a tiny image can't be pooled as often as there are layers
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(depth * height * width, hidden), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            x = x.unsqueeze(1)
        if not x.is_floating_point():
            x = x.to(self.head.weight.dtype)
        logits: Tensor = self.head(self.hidden(self.features(x)))
        return logits


def convnet(
    input_shape: Sequence[int], outputs: int, channels: Sequence[int] = (32, 64), hidden: int = 128, dropout: float = 0.0
) -> nn.Module:
    """One 3 x 3 convolution, ReLU and 2 x 2 pooling for each of `channels`, then one hidden layer."""
    return ConvNet(input_shape, outputs, channels, hidden, dropout)
