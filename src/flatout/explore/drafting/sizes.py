"""The size of a first model and the length of its training: it learns something and ends within minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatout.explore.drafting.writing import Raw

_MOST_ROWS = 20_000_000  # of a table, over all epochs
_MOST_IMAGES = {"cpu": 40_000, "accelerator": 4_000_000}  # of 64 x 64 pixels


@dataclass(frozen=True)
class DraftTraining:
    """The part of a recipe that is not data."""

    model: dict[str, Any]
    batch: int
    lr: Raw
    budget: str
    clip: Raw | None = None
    evaluate: str | None = None


def device_kind() -> str:
    """ "cpu" or "accelerator": decides how much training fits into a minute."""
    from flatout.machine.device import pick_device

    return "cpu" if pick_device("auto").type == "cpu" else "accelerator"


def for_table(rows: int, training_rows: int) -> DraftTraining:
    hidden = [64] if rows < 2_000 else [128, 64] if rows < 100_000 else [256, 128]
    batch = _power_of_two(_rows_a_step(training_rows, 60, 16), 1, 1024)
    lr = Raw("1e-3" if batch <= 64 else "2e-3" if batch < 1024 else "3e-3")
    epochs = 60 if rows < 2_000 else 20 if rows < 20_000 else 10
    budget = _epochs_or_steps(epochs, training_rows, batch, _MOST_ROWS)
    return DraftTraining({"mlp": {"hidden": hidden, "dropout": 0.1}}, batch, lr, budget)


def scaled_lr(lr: Raw, label_size: float) -> Raw:
    """For a label that is a raw number: weights have to move faster to reach large labels in the same number of steps."""
    if label_size <= 1:
        return lr
    return Raw(f"{float(lr.text) * min(label_size, 1e8) ** 0.25:.0e}".replace("e-0", "e-"))


def for_images(training_rows: int, size: int, device: str) -> DraftTraining:
    """`size` pixels a side, halved by each layer down to about four."""
    channels, side = [32], size // 2
    while side > 4 and len(channels) < 6:
        channels.append(min(256, 2 * channels[-1]))
        side //= 2
    batch = _power_of_two(_rows_a_step(training_rows, 30, 8), 1, 64 if device == "cpu" else 256)
    epochs = 40 if training_rows < 1_000 else 15 if training_rows < 20_000 else 10
    budget = _epochs_or_steps(epochs, training_rows, batch, int(_MOST_IMAGES[device] * (64 / size) ** 2))
    return DraftTraining({"convnet": {"channels": channels, "hidden": 128, "dropout": 0.2}}, batch, Raw("1e-3"), budget)


@dataclass(frozen=True)
class Words:
    """Training on text, with its window."""

    window: int
    training: DraftTraining


def for_text(tokens: int, held_share: float, vocabulary: int, device: str) -> Words:
    """`held_share` of the tokens are for validation, which needs at least a window."""
    longest = 256 if device != "cpu" else 64
    least = int(tokens * min(1 - held_share, held_share or 1.0)) - 1
    window = longest
    while window > 8 and window > least // 4:
        window //= 2
    rows = max(1, int(tokens * (1 - held_share)) // window)
    if device != "cpu" and tokens >= 200_000:
        layers, heads, width, steps, batch = 6, 6, 384, 2000, 64
    elif tokens >= 200_000:
        layers, heads, width, steps, batch = 4, 4, 128, 1500, 32
    else:
        layers, heads, width, steps, batch = 2, 2, 64, 500, 32
    if device == "cpu" and vocabulary > 5_000:  # most of the work is in the last layer
        width, steps = 64, 500
    batch = min(batch, _power_of_two(rows, 1, batch))
    gpt: dict[str, Any] = {"layers": layers, "heads": heads, "width": width}
    if device != "cpu" and layers > 2:
        gpt["dropout"] = 0.2
    lr = Raw("1e-3" if width > 128 else "3e-3")
    return Words(window, DraftTraining({"gpt": gpt}, batch, lr, f"{steps} steps", Raw("1.0"), "500 steps"))


def _rows_a_step(rows: int, steps: int, least: int) -> float:
    """The batch for which an epoch takes `steps`, but at least `least` if there are that many rows."""
    return min(rows, max(least, rows / steps))


def _power_of_two(value: float, least: int, most: int) -> int:
    """The largest power of two that is not larger, within bounds."""
    size = least
    while size * 2 <= min(value, most):
        size *= 2
    return size


def _epochs_or_steps(epochs: int, rows: int, batch: int, most_rows: int) -> str:
    fitting = min(epochs, most_rows // max(1, rows))
    if fitting >= 1:
        return f"{fitting} epoch{'' if fitting == 1 else 's'}"
    return f"{most_rows // batch} steps"
