"""Nothing waits for the device between log points: proved on a CPU by counting the scalars that the host reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import SyncCounter, counting_syncs, disturbed, dropping_net, in_training, train

import flatout as fo

TEXT = {"data": "text", "model": {"gpt": {"layers": 1, "heads": 1, "width": 16}}, "objective": "next_token"}


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"clip": 1.0, "ema": 0.9, "model": dropping_net},
        {"optimizer": "sgd", "settings": {"micro_batch": 5, "checkpoint_every": "3 steps"}},
        {"settings": {"tier": "pinned", "deterministic": False}},
        {"settings": {"precision": "bf16"}},
        {"settings": {"precision": "fp16"}},
        TEXT,
        {**TEXT, "settings": {"micro_batch": 3}},
    ],
    ids=["plain", "clip-ema", "sgd-micro", "pinned", "bf16", "fp16", "text", "text-micro"],
)
def test_the_host_reads_nothing_between_log_points(tmp_path: Path, form: dict[str, Any]) -> None:
    if form.get("data") == "text":
        form = {**form, "data": fo.data.text("module:this", window=16), "batch": 8}
    with counting_syncs() as syncs:
        run = train(tmp_path, budget="14 steps", evaluate="5 steps", observers=[syncs.observe], **form)
    assert run.result["steps"] == 14
    assert syncs.counted == 0
    assert syncs.allowed > 0, "log points, evaluations and checkpoints read something"


def test_the_counter_sees_a_sync_in_the_step(tmp_path: Path) -> None:
    with counting_syncs() as syncs, disturbed(in_training(lambda call, x: None if float(x.sum()) > -1e9 else x)):
        train(tmp_path, budget="6 steps", observers=[syncs.observe])
    assert syncs.counted == 6


def test_the_counter_sees_what_looks_at_a_tensor() -> None:
    with SyncCounter() as syncs:
        syncs.listening = True
        assert torch.ones(()) > 0
        torch.ones(()).item()
    assert syncs.counted == 2
