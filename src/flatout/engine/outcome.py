"""The output of a finished run: model.safetensors with all weights, and the figures of result.json."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from flatout.base.errors import DamagedCheckpoint
from flatout.base.events import EventLog
from flatout.engine.assembly import Assembly
from flatout.engine.device import peak_bytes
from flatout.engine.energy import EnergyBooks
from flatout.engine.job import Job
from flatout.engine.progress import Progress
from flatout.engine.saver import Saver
from flatout.engine.state import TrainState
from flatout.measure.ledger import TRAINING_ROWS, Ledger
from flatout.store.run_folder import RunFolder
from flatout.store.sharded import ShardedCheckpoints
from flatout.store.sharded_export import export


def write_weights(
    state: TrainState, folder: RunFolder, checkpoints: ShardedCheckpoints, best_step: int | None, events: EventLog
) -> None:
    """Write `model.safetensors`: the averaged weights if the recipe asks for an average, the best ones if it stops early.

    Tied weights are stored under each of their names, so that other tools can load the file.
    """
    if best_step is not None:
        try:
            here = state.tree_to_fill(Progress()) if state.world.is_split else None
            state.restore(checkpoints.load(best_step, into=here))
        except DamagedCheckpoint as damage:
            events.emit("degraded", what="best weights", why=f"the last weights are the result instead: {damage}")
    with state.average.in_place() if state.average is not None else nullcontext():
        export(folder.weights_path, state.weights(), checkpoints.peers, expect=folder.manifest.expect)


def outcome(
    job: Job,
    parts: Assembly,
    saver: Saver,
    progress: Progress,
    ledger: Ledger,
    energy: EnergyBooks,
    reason: str,
    last_loss: float | None,
    events: EventLog,
) -> dict[str, Any]:
    totals = ledger.totals()
    train_s = sum(totals[row] for row in TRAINING_ROWS)
    samples_per_s = (progress.samples - progress.untimed_samples) / train_s if train_s else 0.0
    tokens = job.data.train.tokens_per_row
    save = saver.times
    used = _with_rates(energy.result(), job, progress)
    left_out_count, left_out = job.data.left_out()
    metrics = progress.best_metrics if job.early_stop else progress.metrics  # of the weights that were saved
    return {
        "status": "finished",
        "reason": reason,
        "steps": progress.step,
        "samples": progress.samples,
        "train_seconds": train_s,
        "samples_per_s": samples_per_s,
        "tokens_per_s": samples_per_s * tokens if tokens > 1 else None,
        "wall_seconds": ledger.wall_s,
        "metrics": {"train_loss": last_loss, **metrics},
        "best": progress.best,
        "skipped_steps": progress.skipped,
        "rollbacks": progress.rollbacks,
        "micro_batch": parts.step.passes.micro_batch or job.batch,
        "peak_memory_bytes": peak_bytes(parts.step.device),
        "energy_wh": used["device"]["joules"] / 3600 if "joules" in used["device"] else "unavailable",
        "energy": used,
        "price_per_hour": job.price_per_hour,
        "cost_usd": None if job.price_per_hour is None else ledger.wall_s / 3600 * job.price_per_hour,
        "checkpoints": {
            "saved": save.count,
            "failed": saver.failures,
            "blocked_s": save.blocked_s,
            "whole_s": save.whole_s,
        },
        "reading": parts.feed.stats(),
        "bad_rows": left_out,
        "bad_row_count": left_out_count,
        "events_lost": events.lost,
        "ledger": totals,
    }


def _with_rates(used: dict[str, Any], job: Job, progress: Progress) -> dict[str, Any]:
    """Joules per sample, token and epoch: of training alone, as the speed is."""
    device = used["device"]
    samples = progress.samples - progress.untimed_samples
    if "joules" in device and samples > 0:
        joules = sum(spent for row, spent in device["by_phase"].items() if row in TRAINING_ROWS) / samples
        tokens, rows = job.data.train.tokens_per_row, job.data.epoch_rows
        device["per_sample_j"] = joules
        device |= ({"per_token_j": joules / tokens} if tokens > 1 else {}) | ({"per_epoch_j": joules * rows} if rows else {})
    return used
