"""When a run is saved, from which checkpoint it resumes, and to which it goes back after its loss diverged.

`TrainState` is the content of a checkpoint, `Saver` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn

from flatout.base.budget import Budget
from flatout.base.errors import Diverged, Stopped
from flatout.base.events import EventLog
from flatout.base.units import parse_seconds, show_seconds
from flatout.engine.assembly import Assembly
from flatout.engine.device import sync_point
from flatout.engine.job import Job
from flatout.engine.one_process import Together
from flatout.engine.progress import Progress
from flatout.engine.saver import Saver, SaverElsewhere
from flatout.engine.settings import Settings
from flatout.engine.signals import StopRequest
from flatout.engine.state import finite
from flatout.measure.ledger import Ledger
from flatout.store.checkpoints import fits_the_run
from flatout.store.run_folder import RunFolder
from flatout.store.sharded import ShardedCheckpoints
from flatout.store.sharded_peers import Peers
from flatout.world.world import World

MAX_ROLLBACKS = 3


class Checkpointing:
    def __init__(
        self, job: Job, settings: Settings, folder: RunFolder, events: EventLog, parts: Assembly, together: Together
    ) -> None:
        self._job, self._settings, self._folder, self._events = job, settings, folder, events
        self._parts, self._together, self._world = parts, together, together.world
        apart = self._world.is_split or parts.state.local is not None  # each process has its own part to save
        self.checkpoints = ShardedCheckpoints(
            folder.checkpoints(settings.keep_checkpoints), Peers(self._world if apart else World())
        )
        saver = Saver if self._world.is_first or apart else SaverElsewhere
        self.saver = saver(self.checkpoints, events, parts.step.device, parse_seconds(settings.grace))
        every = settings.checkpoint_every
        self._every = None if every in ("auto", "end") else Budget.parse(every)
        self._saved_step, self._saved_s = -1, 0.0
        self._found_step = 0  # of the checkpoint that was read last
        self._swept: list[str] = []

    def due(self, progress: Progress) -> bool:
        """Whether to save now: counted in steps, or by the clock of the first process."""
        if progress.step == self._saved_step or progress.nonfinite_in_row or self._settings.checkpoint_every == "end":
            return False
        if self._every is not None and self._every.unit == "steps":
            return progress.step - self._saved_step >= self._every.amount
        return self._together.save_due(self.wanted, progress)

    def wanted(self, progress: Progress) -> bool:
        """Whether to save now by this process's clock."""
        if self.saver.busy:
            return False
        if self._every is None:
            failure_every_s = parse_seconds(self._settings.failure_every)
            return progress.elapsed_s - self._saved_s >= self.saver.best_interval_s(failure_every_s)
        return progress.elapsed_s - self._saved_s >= self._every.amount

    def save(self, progress: Progress, ledger: Ledger, *, wait: bool = False, again: bool = False) -> None:
        """`again`: also if this step was saved before, because it has been evaluated since."""
        parts = self._parts
        if again or progress.step != self._saved_step:
            if not self._weights_are_finite():
                self._events.emit("checkpoint_refused", step=progress.step, why="some weights are not finite")
                return
            progress.micro_batch = parts.step.passes.micro_batch
            parts.step.exchange.average_statistics()
            ledger.lap("checkpoint")
            progress.ledger = ledger.to_dict()
            self.saver.save(progress.step, parts.state.tree(progress, parts.stream_state()), best=progress.best)
            self._saved_step, self._saved_s = progress.step, progress.elapsed_s
        if wait:
            self.saver.wait()
        ledger.lap("checkpoint")

    def find_first(self, progress: Progress) -> dict[str, Any] | None:
        """The checkpoint to start from. Removes files that a killed process left half written."""
        self._swept = self._folder.checkpoints().sweep() if self._world.is_first else []
        return self.find(progress)

    def find(self, progress: Progress) -> dict[str, Any] | None:
        """The newest complete checkpoint. The first process finds it; all processes read it, or their part of it."""
        parts, checkpoints = self._parts, self._folder.checkpoints()
        found: tuple[int, dict[str, Any]] | None
        if self._world.is_split:
            if not self.checkpoints.steps():
                return None
            here = parts.state.tree_to_fill(progress, parts.stream_state())
            found = self.checkpoints.load_latest(self._on_damage, into=here)
            if found is None:
                parts.state.nothing_to_fill()
        elif parts.state.local is not None:  # all of it: another number of processes needs the parts of all
            found = self.checkpoints.load_latest(self._on_damage)
        else:
            found = checkpoints.load_latest(self._on_damage) if self._world.is_first else None
            step = self._world.from_first(None if found is None else found[0])
            if step is not None and found is None:
                found = step, checkpoints.load(step)
        if found is None:
            return None
        self._found_step, tree = found
        return tree

    def restore(self, tree: dict[str, Any]) -> Progress:
        with self._fits():
            self._parts.thaw(tree["progress"]["samples"])  # the optimizer gets the parameters that it had there
        step = self._parts.step
        with self._fits():
            progress = self._parts.state.restore(tree)
        step.update.state_loaded()
        self._saved_step, self._saved_s = progress.step, progress.elapsed_s
        self._parts.seek(progress.samples, tree.get("stream"))
        if progress.micro_batch:
            step.passes.micro_batch = progress.micro_batch
            step.passes.warm(self._world.largest_share(self._job.batch))
        return progress

    def say_resumed(self, tree: dict[str, Any], progress: Progress, to_come: Mapping[str, Any]) -> None:
        state = self._parts.state
        with self._fits():
            differences = state.differences(tree)
        if differences and self._settings.deterministic:
            why = f"resumed, but not bit for bit: {'; '.join(differences)}"
            self._events.emit("degraded", what="deterministic", why=why)
        was, now = tree.get("made_by", ""), state.made_by
        if was != now:
            self._events.emit("degraded", what="data", why=f"from here on rows are decoded by {now} (before: {was})")
        self._events.emit("resumed", step=progress.step, samples=progress.samples, swept=self._swept, **to_come)

    def diverged(self, progress: Progress, skipped: int) -> str | None:
        """Why the run can't continue from here, or None. `skipped`: steps skipped since the last log point."""
        in_row = progress.nonfinite_in_row
        if in_row >= self._settings.nonfinite_limit:
            return f"the loss was not finite for {in_row} steps in a row up to step {progress.step}"
        if (skipped or self._parts.budget.is_spent(progress)) and not self._weights_are_finite():
            return f"the weights, or running statistics, were not finite at step {progress.step}"
        return None

    def roll_back(self, failed: Progress, why: str) -> Progress:
        """Go back to the last good checkpoint and halve the learning rate; give up after `MAX_ROLLBACKS` times."""
        self.saver.wait()
        found = self.find(failed)
        if failed.rollbacks >= MAX_ROLLBACKS or found is None:
            raise Diverged(
                f"{why}; rolled back {failed.rollbacks} times, the last time to {failed.rate_factor:g} of the learning rate: "
                f"lower lr (it is {self._job.lr:g}), set clip: 1.0, or look for bad values in the data"
            )
        progress = self.restore(found)
        progress.rate_factor, progress.rollbacks = failed.rate_factor / 2, failed.rollbacks + 1
        progress.skipped, progress.elapsed_s, progress.energy_j = failed.skipped, failed.elapsed_s, failed.energy_j
        self._parts.budget.begin(progress)
        self._saved_step = -1  # the same step, at the lower rate, is saved again
        self._events.emit("rolled_back", step=progress.step, from_step=failed.step, rate_factor=progress.rate_factor, why=why)
        return progress

    def leave(self, stop: StopRequest, step: int) -> NoReturn:
        """End the run after a signal, and say what was saved."""
        name, save_s, grace = str(stop.signal_name), self.saver.times.last_s, self._settings.grace
        fits = "fits in" if save_s < parse_seconds(grace) else "is LONGER than"
        took = f"; a save takes {show_seconds(save_s)}, which {fits} the grace period of {grace}"
        kept = self._folder.checkpoints().steps()
        missed = f"step {step} could NOT be saved, the last checkpoint is {kept[-1:]}"
        saved = f"saved at step {step}" if step in kept else missed
        self._events.emit("stopped", signal=name, step=step, saved=step in kept, save_s=save_s, grace_s=parse_seconds(grace))
        raise Stopped(name, stop.exit_code, f"{name}: {saved}{took if save_s else ''}. Run the same command to resume.")

    def release(self) -> None:
        self.saver.wait()
        self.checkpoints.peers.close()

    def _weights_are_finite(self) -> bool:
        """Weights and running statistics, on all processes."""
        with sync_point():
            return not self._world.any(not finite(self._parts.state.model))

    def _fits(self) -> AbstractContextManager[None]:
        return fits_the_run(self._folder.checkpoints().path(self._found_step))

    def _on_damage(self, step: int, what: str) -> None:
        self._events.emit("checkpoint_damaged", step=step, why=what)
        if not self._world.is_first:
            return
        with suppress(OSError):
            self._folder.checkpoints().set_aside(step)
