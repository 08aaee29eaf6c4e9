"""Training by Lightning as its experts set it up: bf16-mixed, compiled with its loss; no logger, checkpoint or progress bar."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def is_missing() -> bool:
    return importlib.util.find_spec("lightning") is None


@dataclass(frozen=True)
class Training:
    """`loss`: model and loss in one, called with the parts of a batch. `clip`: 0: gradients are not clipped."""

    loss: nn.Module
    optimizer: Callable[[nn.Module], Optimizer]
    batches: Iterable[Any]
    device: torch.device
    clip: float = 0.0
    accumulated: int = 1


def fit(training: Training, most_steps: int, after_step: Callable[[int], bool]) -> None:
    """`after_step` hears the number of optimizer steps that are done and says whether to stop."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.loss = torch.compile(training.loss, dynamic=False)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            loss: Tensor = self.loss(*batch)
            return loss

        def configure_optimizers(self) -> Optimizer:
            return training.optimizer(self)

        def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
            if training.clip:  # its own clipping refuses fused optimizers
                torch.nn.utils.clip_grad_norm_(self.parameters(), training.clip, foreach=True)

        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer.should_stop = self.trainer.should_stop or after_step(self.trainer.global_step)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    trainer = lightning.Trainer(
        accelerator="gpu" if training.device.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=most_steps,
        max_epochs=-1,
        min_epochs=0,
        accumulate_grad_batches=training.accumulated,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), training.batches)
