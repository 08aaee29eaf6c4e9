"""The peers' arm of tune_covertype: Optuna's TPE with asynchronous halving over trainings by Lightning."""

from __future__ import annotations

import importlib.util
import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKAGES = ("lightning", "optuna")


@dataclass(frozen=True)
class Search:
    """What both arms search: the same rows, model, budget of a trial and ranges."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    classes: int
    hidden: tuple[int, ...]
    batch: int
    epochs: int
    trials: int
    lr: tuple[float, float]
    weight_decay: tuple[float, float]
    dropout: tuple[float, float]


@dataclass
class Course:
    """The best score so far: (seconds since the start, score) where it rose."""

    rises: list[tuple[float, float]] = field(default_factory=list)
    trials: int = 0
    seconds: float = 0.0

    def note(self, seconds: float, score: float) -> None:
        if not self.rises or score > self.rises[-1][1]:
            self.rises.append((seconds, score))

    @property
    def best(self) -> float:
        return self.rises[-1][1] if self.rises else 0.0

    def reached(self, score: float) -> float | None:
        """Seconds until the best score was at least this."""
        return next((seconds for seconds, value in self.rises if value >= score), None)


def missing() -> str:
    """Why the peers can't run here, in words; empty: they can."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


class Batches:
    """Shuffled batches of tensors that lie on the device: faster than any DataLoader for rows this small."""

    def __init__(self, columns: tuple[Tensor, Tensor], batch: int, *, shuffle: bool) -> None:
        self._columns, self._batch, self._shuffle = columns, batch, shuffle

    def __len__(self) -> int:
        return -(-len(self._columns[0]) // self._batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self._columns
        order = torch.randperm(len(x), device=x.device) if self._shuffle else torch.arange(len(x), device=x.device)
        for rows in order.split(self._batch):
            yield x[rows], y[rows]


def searched(search: Search, device: torch.device, seconds: float) -> Course:
    """Until the time is over or all trials are done."""
    import lightning
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    course, began_s = Course(), time.perf_counter()
    columns = tuple(column.to(device) for column in search.train), tuple(column.to(device) for column in search.validation)
    train = Batches(columns[0], search.batch, shuffle=True)  # type: ignore[arg-type]
    validation = Batches(columns[1], 8 * search.batch, shuffle=False)  # type: ignore[arg-type]
    steps = search.epochs * len(train)

    class Module(lightning.LightningModule):
        def __init__(self, lr: float, weight_decay: float, dropout: float) -> None:
            super().__init__()
            self.lr, self.weight_decay = lr, weight_decay
            self.network = _mlp(len(search.train[0][0]), search.hidden, search.classes, dropout)
            self.right, self.score = torch.zeros((), device=device), 0.0

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def on_validation_epoch_start(self) -> None:
            self.right = torch.zeros((), device=device)

        def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
            self.right += (self.network(batch[0]).argmax(1) == batch[1]).sum()

        def on_validation_epoch_end(self) -> None:
            self.score = float(self.right) / len(search.validation[0])

        def configure_optimizers(self) -> Any:
            fused = device.type == "cuda"
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=fused)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, self.lr, total_steps=steps, pct_start=0.05, cycle_momentum=False
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Pruning(lightning.Callback):
        def __init__(self, trial: Any) -> None:
            self._trial = trial

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            course.note(time.perf_counter() - began_s, module.score)
            if time.perf_counter() - began_s > seconds:
                trainer.should_stop = True
                return
            self._trial.report(module.score, trainer.current_epoch + 1)
            if self._trial.should_prune():
                raise optuna.TrialPruned

    def objective(trial: Any) -> float:
        module = Module(
            trial.suggest_float("lr", *search.lr, log=True),
            trial.suggest_float("weight_decay", *search.weight_decay, log=True),
            trial.suggest_float("dropout", *search.dropout),
        )
        trainer = lightning.Trainer(
            accelerator="gpu" if device.type == "cuda" else "cpu", devices=1, max_epochs=search.epochs, logger=False,
            precision="bf16-mixed" if device.type == "cuda" else "32-true", callbacks=[Pruning(trial)],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(module, train, validation)
        return module.score

    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, multivariate=True, constant_liar=False),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    )  # fmt: skip
    study.optimize(objective, n_trials=search.trials, timeout=seconds)
    course.trials, course.seconds = len(study.trials), time.perf_counter() - began_s
    return course


def _mlp(width: int, hidden: tuple[int, ...], classes: int, dropout: float) -> nn.Module:
    layers: list[nn.Module] = []
    for wide in hidden:
        layers += [nn.Linear(width, wide), nn.ReLU(), nn.Dropout(dropout)]
        width = wide
    return nn.Sequential(*layers, nn.Linear(width, classes))
