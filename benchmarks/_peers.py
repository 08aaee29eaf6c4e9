"""The peers' arms of plan_gpu: GPT-2 in Lightning and in HF Trainer, set up as their experts would, timed over steady steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _lightning import Training, fit
from gpt2 import CLIP, LR, WEIGHT_DECAY, Size
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset

from flatout.measure.clock import synchronize
from flatout.models.gpt import gpt

BETAS = (0.9, 0.95)
WORKERS = min(4, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Work:
    """What every arm has in common: the model, the tokens, the global batch, and which steps are timed."""

    size: Size
    tokens: Path
    device: torch.device
    warmup: int  # optimizer steps that compile and fill queues
    stretch: int  # optimizer steps of one value
    stretches: int

    @property
    def steps(self) -> int:
        return self.warmup + self.stretches * self.stretch

    @property
    def padded_vocabulary(self) -> int:
        """To a multiple of 64, as nanoGPT has it: matrix products are faster so."""
        return -(-self.size.vocabulary // 64) * 64


class Marks:
    """The time, with the device done, after the warm-up and after each stretch of optimizer steps."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._at_s: dict[int, float] = {}

    def __call__(self, steps_done: int) -> None:
        past = steps_done - self._work.warmup
        if past >= 0 and past % self._work.stretch == 0 and steps_done not in self._at_s:
            synchronize(self._work.device)
            self._at_s[steps_done] = time.perf_counter()

    def tokens_per_s(self) -> list[float]:
        tokens = self._work.stretch * self._work.size.batch * self._work.size.window
        return [tokens / (after - before) for before, after in pairwise(self._at_s.values())]


class Windows(Dataset[Any]):
    """Tokens in memory, cut into windows; `shifted` where the model does not shift targets by itself."""

    def __init__(self, work: Work, shifted: bool) -> None:
        self._tokens = np.fromfile(work.tokens, dtype=np.uint16)
        self._window, self._shifted = work.size.window, shifted

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._window

    def __getitem__(self, index: int) -> Any:
        begin = index * self._window
        piece = torch.from_numpy(self._tokens[begin : begin + self._window + 1].astype(np.int64))
        x, y = piece[:-1], piece[1:]
        return (x, y) if self._shifted else {"input_ids": x, "labels": x}


class LanguageLoss(nn.Module):
    """Model and loss in one, so that both are compiled together."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        torch.manual_seed(0)
        size = work.size
        self.network = gpt(work.padded_vocabulary, size.window, layers=size.layers, heads=size.heads, width=size.width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x).flatten(0, -2).float(), y.flatten())


def lightning_training(work: Work, micro_batch: int) -> Training:
    """Fused AdamW, batches read ahead by workers."""

    def optimizer(module: nn.Module) -> Optimizer:
        matrices = [p for p in module.parameters() if p.ndim >= 2]
        vectors = [p for p in module.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        return AdamW(groups, lr=LR, betas=BETAS, fused=True)

    loader = DataLoader(
        Windows(work, shifted=True),
        batch_size=micro_batch,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        pin_memory=work.device.type == "cuda",
    )
    return Training(LanguageLoss(work), optimizer, loader, work.device, CLIP, work.size.batch // micro_batch)


def lightning_rates(work: Work, micro_batch: int) -> list[float]:
    marks = Marks(work)

    def mark(steps_done: int) -> bool:
        marks(steps_done)
        return False

    fit(lightning_training(work, micro_batch), work.steps, mark)
    return marks.tokens_per_s()


def transformers_rates(work: Work, micro_batch: int) -> list[float]:
    """bf16, torch_compile, fused AdamW, SDPA, no dropout and no cache of keys; logging, saving and progress off."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers  # type: ignore[import-not-found]

    marks = Marks(work)

    class Timing(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            marks(state.global_step)

    torch.manual_seed(0)
    size, on_gpu = work.size, work.device.type == "cuda"
    config = transformers.GPT2Config(
        vocab_size=work.padded_vocabulary,
        n_positions=size.window,
        n_layer=size.layers,
        n_head=size.heads,
        n_embd=size.width,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(work.tokens.parent / "transformers"),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=size.batch // micro_batch,
        max_steps=work.steps,
        learning_rate=LR,
        weight_decay=WEIGHT_DECAY,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=CLIP,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        bf16=True,
        torch_compile=True,
        use_cpu=not on_gpu,
        dataloader_num_workers=WORKERS,
        dataloader_persistent_workers=True,
        dataloader_pin_memory=on_gpu,
        dataloader_drop_last=True,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Windows(work, shifted=False),
        callbacks=[Timing()],
    ).train()
    return marks.tokens_per_s()


PEERS: dict[str, Callable[[Work, int], list[float]]] = {"lightning": lightning_rates, "transformers": transformers_rates}
SHOWN = {"lightning": "Lightning", "transformers": "HF Trainer"}


def micro_batches(work: Work) -> tuple[int, ...]:
    """The whole batch at once, and its half twice."""
    return work.size.batch, work.size.batch // 2


def version_of(peer: str) -> str:
    return str(__import__(peer).__version__)
