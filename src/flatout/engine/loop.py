"""The training loop, from top to bottom. If you need another one, copy this file.

It waits for the device only at log points, evaluations and checkpoints. Observers get events; they can't change anything here.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flatout.base.errors import UsageError
from flatout.base.events import EventLog
from flatout.engine.assembly import assemble
from flatout.engine.checkpointing import Checkpointing
from flatout.engine.device import sync_point
from flatout.engine.energy import EnergyBooks
from flatout.engine.job import Job
from flatout.engine.logbook import Evaluations, Logbook
from flatout.engine.one_process import Together
from flatout.engine.outcome import outcome, write_weights
from flatout.engine.progress import Progress
from flatout.engine.records import DevicePhases, HostPhases, NoPhases
from flatout.engine.settings import Settings
from flatout.engine.shared_cores import SharedCores
from flatout.engine.surroundings import run_set_up
from flatout.machine.meters import Meters
from flatout.machine.power_limit import limited_power
from flatout.measure.clock import synchronize
from flatout.measure.ledger import Ledger
from flatout.store.run_folder import RunFolder
from flatout.world.watch import SPLIT_FORWARD, NoWatch
from flatout.world.world import World

if TYPE_CHECKING:
    from flatout.world.watch.watch import RankWatch


def train(
    job: Job,
    settings: Settings,
    folder: RunFolder,
    events: EventLog,
    cache: Path | None = None,
    world: World | None = None,
    watch: RankWatch | NoWatch | None = None,
) -> dict[str, Any]:
    """Train to the end of the budget, from the last good checkpoint if there is one. Returns the content of result.json.

    Every process of a `world` calls it with the same job and settings; `watch` learns what each process is doing.
    """
    world, meeting = world or World(), Together
    if world.size > 1:
        from flatout.engine.parallel.mesh import parse_mesh  # here: one process starts sooner without it
        from flatout.engine.parallel.together import AmongSeveral

        meeting = AmongSeveral
        world.lay_out(parse_mesh(settings.mesh, world.size))
        if job.frozen.until and (world.is_split or job.exchange is not None):
            without = "exchange" if job.exchange is not None else f"mesh={settings.mesh}"
            raise UsageError(
                f"unfreeze needs all weights on every process, summed in every step: leave out {without}, or use --devices 1"
            )
    limited = limited_power(settings.power_limit, torch.device(settings.device))
    with run_set_up(settings, job.seed, world) as stop, limited as unlimited:
        if unlimited:
            events.emit("degraded", what="power_limit", value=settings.power_limit, why=f"not set: {unlimited}")
        loop = Loop(job, settings, folder, events, meeting(world, stop, watch), cache)
        try:
            loop.begin()
            loop.run()
            return loop.finish()
        finally:
            loop.release()


class Loop:
    def __init__(
        self, job: Job, settings: Settings, folder: RunFolder, events: EventLog, together: Together, cache: Path | None
    ) -> None:
        self.job, self.settings, self.folder, self.events = job, settings, folder, events
        self.together, self.world, self.stop, self.watch = together, together.world, together.stop, together.watch
        meters = Meters(torch.device(settings.device))
        self.ledger = Ledger()
        self.energy = EnergyBooks(self.ledger, meters.energy, self.world, on_host=settings.device == "cpu")
        self.parts = assemble(job, settings, folder.path, events, cache, together, meters)
        self.parts.say_degraded(events)
        self.parts.step.exchange.at = self.at
        self.checkpointing = Checkpointing(job, settings, folder, events, self.parts, together)
        self.evaluations = Evaluations(job, settings, events, self.parts, together)
        self.log = Logbook(job, self.parts, events, settings.log_every, partial(together.meet, self.checkpointing.wanted))
        self.cores = SharedCores(settings, events, alone=self.world.size == 1)
        self.progress = Progress(next_evaluation=self.evaluations.next_after(0))
        self.phases = DevicePhases() if self.parts.step.device.type == "cuda" else HostPhases(self.ledger)

    def begin(self) -> None:
        """Start from the last good checkpoint, or from step 0."""
        budget, found = self.parts.budget, self.checkpointing.find_first(self.progress)
        if found is not None:
            self.progress = self.checkpointing.restore(found)
            self.ledger.add(self.progress.ledger)
            self.energy.resume(self.progress.joules)
        self.ledger.lap("setup")
        self.energy.read()
        self.parts.capture(self.job, self.settings, self.events)
        self.ledger.lap("compile" if self.parts.step.passes.compiled else "setup")
        budget.begin(self.progress)
        self.log.start_at(self.progress)
        self.ledger.lap("setup")
        self.energy.read()
        if found is None:
            self.events.emit("started", **self.to_come())
            self.save()  # so a rollback always finds one, and how long a save takes is known
        else:
            self.checkpointing.say_resumed(found, self.progress, self.to_come())

    def to_come(self) -> dict[str, Any]:
        """The work of the whole run, to estimate the time left."""
        budget, validation = self.parts.budget, self.job.data.validation
        return {
            "total_steps": budget.total_steps,
            "total_samples": budget.total_samples,
            "evaluate_every_samples": self.evaluations.every_samples,
            "evaluation_rows": 0 if validation is None else len(validation),
            "may_end_early": self.job.budget.target is not None or self.job.early_stop is not None,
        }

    def run(self) -> None:
        parts, budget, ledger, first = self.parts, self.parts.budget, self.ledger, True
        evaluations, checkpointing = self.evaluations, self.checkpointing
        forward = SPLIT_FORWARD if self.world.meets_in_forward else "forward"
        while True:
            if self.log.due(self.progress) or evaluations.due(self.progress) or budget.is_spent(self.progress) or self.stop:
                self.read_log()
            progress, step = self.progress, parts.step  # a rollback has replaced them
            ended = budget.is_spent(progress)
            if self.stop:
                return
            if ended:
                step.exchange.finish()
            if evaluations.due(progress) or (ended and evaluations.every_samples is not None):
                self.evaluate()
            if ended or self.stop or evaluations.early_end(progress):
                return
            if checkpointing.due(progress):
                self.save()
                progress = self.progress
            if parts.thawing.due(progress.samples):
                self.thaw()
                step, first = parts.step, True

            self.at("data")
            size = parts.next_size(progress)
            if parts.graph is not None and size == self.job.batch:
                parts.graph.feed.bring()
                ledger.lap("data")
                parts.graph(self.rate_in, known_ahead=budget.budget.counted)
            else:
                step.update.set_rate(self.rate_in(0))
                if self.log.first_of_interval(progress):
                    self.phases.begin()
                batch = parts.feed.next(size)
                ledger.lap("data")
                self.at("compile" if first and step.passes.compiled else forward)
                step(batch, size)
            step.exchange.after_step(size)
            if first:
                self.after_first_step(size)
                first = False
            ledger.lap("step")
            progress.step += 1
            progress.samples += size
            budget.spend(progress)

    def finish(self) -> dict[str, Any]:
        parts, checkpointing = self.parts, self.checkpointing
        if self.evaluations.possible and not self.stop and self.progress.evaluated_at != self.progress.samples:
            self.evaluate()
        self.save(wait=True)
        self.world.barrier()  # the process that writes has written
        progress = self.progress
        if self.stop:
            checkpointing.leave(self.stop, progress.step)
        best = progress.best["step"] if self.job.early_stop and progress.best else None
        if self.world.is_first or self.world.is_split or parts.state.local is not None:
            with sync_point():
                write_weights(parts.state, self.folder, checkpointing.checkpoints, best, self.events)
        self.ledger.lap("checkpoint")
        self.phases.attribute(self.ledger)
        self.energy.split(self.phases.shares())
        if (bad := self.job.data.left_out()[1]) is not None:
            self.events.emit("degraded", what="data", why=bad)
        reason = self.evaluations.early_end(progress) or "budget spent"
        result = outcome(
            self.job, parts, checkpointing.saver, progress, self.ledger, self.energy, reason, self.log.last_loss, self.events
        )
        self.events.emit("finished", reason=reason, steps=progress.step, metrics=result["metrics"])
        return result

    def release(self) -> None:
        self.checkpointing.release()
        self.parts.release()
        self.parts.step.exchange.at = lambda phase: None  # breaks a reference cycle, so that the data is freed at once

    def at(self, phase: str) -> None:
        """Tell the watch over several processes what this one is doing."""
        self.watch.beat(self.progress.step, phase)

    def rate_in(self, steps: int) -> float:
        """The learning rate this many steps from now."""
        budget, progress = self.parts.budget, self.progress
        done = budget.done_share(progress, steps * self.job.batch)
        share = self.job.schedule.at(progress.step + steps, done, budget.total_steps)
        return self.job.lr * progress.rate_factor * share

    def after_first_step(self, size: int) -> None:
        """The first step compiles, autotunes and loads kernels: its time is counted separately."""
        device = self.parts.step.device
        if device.type == "cuda" or self.settings.compile != "off":
            with sync_point():
                synchronize(device)
            self.parts.report_compiling(self.progress.step)
            self.ledger.lap("compile")
            self.energy.read()
            self.progress.untimed_samples += size
        self.parts.step.time_phases(self.phases if self.parts.graph is None else NoPhases())

    def thaw(self) -> None:
        """Parameters that were frozen start to train: from here on the step is another one."""
        self.catch_up()
        self.parts.thaw(self.progress.samples)
        began, sizes = self.parts.thawing.began(), {name: one.numel() for name, one in self.job.model.named_parameters()}
        weights = sum(sizes[name] for name in began)
        self.events.emit("unfroze", step=self.progress.step, samples=self.progress.samples, tensors=len(began), weights=weights)
        self.ledger.lap("setup")

    def read_log(self) -> None:
        """Log the steps since the last log point. If the loss diverged, go back to the last good checkpoint."""
        skipped = self.log.read(self.progress)
        self.parts.say_degraded(self.events)
        self.ledger.lap("device wait")
        self.parts.report_compiling(self.progress.step)
        self.cores.look()
        self.phases.collect()
        if (why := self.checkpointing.diverged(self.progress, skipped)) is not None:
            self.progress = self.checkpointing.roll_back(self.progress, why)
            self.log.start_at(self.progress)
        self.ledger.lap("logging")

    def evaluate(self) -> None:
        self.catch_up()
        self.energy.read()
        metrics = self.evaluations.metrics(self.progress.step)
        self.ledger.lap("evaluation")
        self.energy.read()
        if metrics is None:
            self.together.meet(self.checkpointing.wanted, self.progress)
        elif self.evaluations.note(self.progress, metrics):
            self.save(again=True)

    def save(self, *, wait: bool = False, again: bool = False) -> None:
        self.catch_up()
        self.at("checkpoint")
        self.energy.read()
        self.progress.joules = self.energy.of_all()
        self.checkpointing.save(self.progress, self.ledger, wait=wait, again=again)
        self.energy.read()

    def catch_up(self) -> None:
        if self.log.behind(self.progress):
            self.read_log()
