"""The loop, from top to bottom. Whoever outgrows it copies it.

Nothing in it waits for the device except at log points, evaluations and checkpoints. Observers get events; none of them can
change what happens here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flatout.base.budget import Budget
from flatout.base.errors import DamagedCheckpoint, Diverged, Stopped
from flatout.base.events import EventLog
from flatout.base.units import parse_seconds, show_seconds
from flatout.data.serving.evaluation import EvalFeed
from flatout.engine.assembly import assemble, evaluation_interval
from flatout.engine.determinism import deterministic_kernels, own_random_state, seed_of
from flatout.engine.ending import early_end, note_evaluation
from flatout.engine.evaluation import evaluate_in_memory
from flatout.engine.job import Job
from flatout.engine.logbook import Logbook
from flatout.engine.outcome import outcome, write_weights
from flatout.engine.parallel.mesh import parse_mesh
from flatout.engine.parallel.statistics import average_statistics
from flatout.engine.phases import DevicePhases, HostPhases, NoPhases
from flatout.engine.precision import matmul_precision
from flatout.engine.progress import Progress
from flatout.engine.settings import Settings
from flatout.engine.shared_evaluation import SharedEvaluation
from flatout.engine.signals import watch_signals
from flatout.engine.state import finite
from flatout.engine.sync import sync_point
from flatout.engine.together import Together, together
from flatout.engine.uncompiled import compiler_left_out
from flatout.machine.watch import SPLIT_FORWARD, NoWatch
from flatout.machine.world import World
from flatout.measure.clock import synchronize
from flatout.measure.ledger import Ledger
from flatout.store.checkpoints import fits_the_run
from flatout.store.run_folder import RunFolder

if TYPE_CHECKING:
    from flatout.machine.watch.watch import Watch

MAX_ROLLBACKS = 3


def train(
    job: Job,
    settings: Settings,
    folder: RunFolder,
    events: EventLog,
    cache: Path | None = None,
    world: World | None = None,
    watch: Watch | NoWatch | None = None,
) -> dict[str, Any]:
    """Train to the end of the budget, from the last good checkpoint if there is one. Returns what result.json holds.

    Every process of a `world` calls it with the same job and settings; `watch` is told where this one is.
    """
    device = torch.device(settings.device)
    world = world or World()
    world.lay_out(parse_mesh(settings.mesh, world.size))
    with (
        watch_signals() as stop,
        compiler_left_out(),
        own_random_state(seed_of(job.seed, world), device),
        deterministic_kernels(settings.deterministic, compiled=settings.compile != "off"),
        matmul_precision(settings.precision),
    ):
        loop = Loop(job, settings, folder, events, together(world, stop, watch), cache)
        try:
            loop.begin()
            loop.run()
            return loop.finish()
        finally:
            loop.parts.saver.wait()
            loop.parts.release()
            loop.let_go()


class Loop:
    def __init__(
        self, job: Job, settings: Settings, folder: RunFolder, events: EventLog, together: Together, cache: Path | None
    ) -> None:
        self.job, self.settings, self.folder, self.events = job, settings, folder, events
        self.together, self.world, self.stop, self.watch = together, together.world, together.stop, together.watch
        self.ledger = Ledger()
        self.device = torch.device(settings.device)
        self.parts = assemble(job, settings, folder, events, cache, together)
        self.parts.say_degraded(events)
        self.parts.step.exchange.at = self.at
        self.log = Logbook(job, self.parts, events, settings.log_every, self.meet)
        self.evaluate_every = evaluation_interval(job)
        every = settings.checkpoint_every
        self.save_every = None if every in ("auto", "end") else Budget.parse(every)
        self.progress = Progress(next_evaluation=self.evaluation_after(0))
        self.saved_step, self.saved_s = -1, 0.0
        self.found_step = 0  # of the checkpoint that was read last
        self.phases = DevicePhases() if self.device.type == "cuda" else HostPhases(self.ledger)

    def begin(self) -> None:
        """From the last good checkpoint, or from the start."""
        swept = self.folder.checkpoints().sweep() if self.world.is_first else []
        found = self.last_good()
        if found is not None:
            self.restore(found)
            self.ledger.add(self.progress.ledger)
        self.ledger.lap("setup")
        self.parts.capture(self.job, self.settings, self.events)
        self.ledger.lap("compile" if self.parts.step.passes.compiled else "setup")
        self.parts.budget.begin(self.progress)
        self.log.start_at(self.progress)
        self.ledger.lap("setup")
        if found is None:
            self.events.emit("started", **self.to_come())
            self.save()  # there is always a checkpoint to go back to, and what a save takes is known from the start
        else:
            with self.fits():
                differences = self.parts.state.differences(found)
            if differences and self.settings.deterministic:
                self.events.emit(
                    "degraded", what="deterministic", why=f"resumed, but not bit for bit: {'; '.join(differences)}"
                )
            was, now = found.get("made_by", ""), self.parts.state.made_by
            if was != now:
                self.events.emit("degraded", what="data", why=f"rows are made by {now} from here on, until here by {was}")
            self.events.emit("resumed", step=self.progress.step, samples=self.progress.samples, swept=swept, **self.to_come())

    def run(self) -> None:
        parts, budget, ledger, first = self.parts, self.parts.budget, self.ledger, True
        forward = SPLIT_FORWARD if self.world.meets_in_forward else "forward"
        while True:
            if self.log.due(self.progress) or self.evaluation_due() or budget.is_spent(self.progress) or self.stop:
                self.read_log()
            progress = self.progress  # a rollback has replaced it
            ended = budget.is_spent(progress)
            if self.stop:
                return
            if ended:
                parts.step.exchange.finish()
            if self.evaluation_due() or (ended and self.evaluate_every is not None):
                self.evaluate()
            if ended or self.stop or early_end(self.job, progress):
                return
            if self.save_due():
                self.save()
                progress = self.progress

            self.at("data")
            size = parts.next_size(progress)
            if parts.graph is not None and size == self.job.batch:
                parts.graph.feed.bring()
                ledger.lap("data")
                parts.graph(self.rate_in, known_ahead=budget.budget.counted)
            else:
                parts.step.update.set_rate(self.rate_in(0))
                if self.log.first_of_interval(progress):
                    self.phases.begin()
                batch = parts.feed.next(size)
                ledger.lap("data")
                self.at("compile" if first and parts.step.passes.compiled else forward)
                parts.step(batch, size)
            parts.step.exchange.after_step(size)
            if first:
                self.after_first_step(size)
                first = False
            ledger.lap("step")
            progress.step += 1
            progress.samples += size
            budget.spend(progress)

    def finish(self) -> dict[str, Any]:
        if self.parts.evaluation is not None and not self.stop and self.progress.evaluated_at != self.progress.samples:
            self.evaluate()
        self.save(wait=True)
        self.world.barrier()  # the one that writes has written
        if self.stop:
            self.leave()
        best = self.progress.best["step"] if self.job.early_stop and self.progress.best else None
        if self.world.is_first or self.world.is_split or self.parts.state.local is not None:
            self.write_weights(best)
        self.ledger.lap("checkpoint")
        self.phases.attribute(self.ledger)
        if (bad := self.job.data.left_out()[1]) is not None:
            self.events.emit("degraded", what="data", why=bad)
        reason = early_end(self.job, self.progress) or "budget spent"
        result = outcome(self.job, self.parts, self.progress, self.ledger, reason, self.log.last_loss, self.events.lost)
        self.events.emit("finished", reason=reason, steps=self.progress.step, metrics=result["metrics"])
        return result

    def write_weights(self, best: int | None) -> None:
        with sync_point():
            try:
                write_weights(self.parts.state, self.folder, self.parts.checkpoints, best)
            except DamagedCheckpoint as damage:
                self.events.emit("degraded", what="best weights", why=f"the last ones are the result instead: {damage}")
                write_weights(self.parts.state, self.folder, self.parts.checkpoints, None)

    def let_go(self) -> None:
        """Its parts know it no more: they, and the data, go with the run and not with the next garbage."""
        self.parts.step.exchange.at = lambda phase: None
        self.log.meet = lambda: None

    # ---- what happens between steps ----

    def at(self, phase: str) -> None:
        """Whoever watches several processes knows where this one is."""
        self.watch.beat(self.progress.step, phase)

    def meet(self) -> None:
        self.at("exchange")
        self.together.meet(self.wants_save)

    def rate_in(self, steps: int) -> float:
        """The learning rate so many steps from now."""
        budget, progress = self.parts.budget, self.progress
        done = budget.done_share(progress, steps * self.job.batch)
        share = self.job.schedule.at(progress.step + steps, done, budget.total_steps)
        return self.job.lr * progress.rate_factor * share

    def after_first_step(self, size: int) -> None:
        """Compiling, autotuning and loading kernels happen in the first step: it has a row of its own."""
        if self.device.type == "cuda" or self.settings.compile != "off":
            with sync_point():
                synchronize(self.device)
            self.parts.compiling.report(self.progress.step)
            self.ledger.lap("compile")
            self.progress.untimed_samples += size
        self.parts.step.time_phases(self.phases if self.parts.graph is None else NoPhases())

    def read_log(self) -> None:
        skipped = self.log.read(self.progress)
        self.parts.say_degraded(self.events)
        self.ledger.lap("device wait")
        self.parts.compiling.report(self.progress.step)
        self.phases.collect()
        progress = self.progress
        if progress.nonfinite_in_row >= self.settings.nonfinite_limit:
            self.roll_back(f"the loss was not finite for {progress.nonfinite_in_row} steps in a row up to step {progress.step}")
        elif (skipped or self.parts.budget.is_spent(progress)) and not self.is_finite():
            self.roll_back(f"the weights, or running statistics, were not finite at step {progress.step}")
        self.ledger.lap("logging")

    def is_finite(self) -> bool:
        with sync_point():
            return not self.world.any(not finite(self.parts.state.model))

    def to_come(self) -> dict[str, Any]:
        """What the whole run has to do: whoever shows the time left counts with it."""
        budget, validation = self.parts.budget, self.job.data.validation
        return {
            "total_steps": budget.total_steps,
            "total_samples": budget.total_samples,
            "evaluate_every_samples": self.evaluate_every,
            "evaluation_rows": 0 if validation is None else len(validation),
            "may_end_early": self.job.budget.target is not None or self.job.early_stop is not None,
        }

    def evaluation_due(self) -> bool:
        return self.evaluate_every is not None and self.progress.samples >= self.progress.next_evaluation

    def evaluation_after(self, samples: int) -> int:
        """Where the next one is due; 0 where none is."""
        every = self.job.evaluate_every
        if self.evaluate_every is None or every is None:
            return 0
        if every.unit == "steps" and (steps := self.parts.feed.steps) is not None:
            count = max(1, round(every.amount))
            return steps.samples_after((steps.steps_until(samples) // count + 1) * count)
        return (samples // self.evaluate_every + 1) * self.evaluate_every

    def evaluate(self) -> None:
        if self.log.behind(self.progress):
            self.read_log()
        assert self.parts.evaluation is not None
        average_statistics(self.parts.state.model, self.world)
        average = self.parts.state.average
        with self.parts.step.exchange.in_place(), average.in_place() if average else nullcontext():
            metrics = self.measured(self.parts.evaluation)
        self.ledger.lap("evaluation")
        if metrics is None:
            self.meet()
            return  # a signal came: the evaluation is due again after the resume
        progress = self.progress
        progress.next_evaluation = self.evaluation_after(progress.samples)
        is_best = note_evaluation(self.job, progress, metrics)
        self.events.emit("evaluation", step=progress.step, samples=progress.samples, metrics=metrics, best=is_best)
        if is_best:
            self.save(again=True)

    def measured(self, feed: EvalFeed) -> dict[str, float] | None:
        """Of one process: all rows. Of several: a share by each."""
        how: Any = {"precision": self.settings.precision, "device": self.device, "exchange": self.parts.step.exchange}
        how |= {"should_stop": self.stops_evaluation, "on_split": self.on_evaluation_split}
        given = self.parts.state.model, self.job.objective, feed
        if self.world.size == 1:
            return evaluate_in_memory(*given, **how)
        return SharedEvaluation(*given, **how, world=self.world, on_wait=lambda: self.at("exchange")).metrics()

    def stops_evaluation(self) -> bool:
        self.at("evaluation")
        return self.together.hears_stop()

    def save_due(self) -> bool:
        """Counted in steps, or as the first process finds by its clock."""
        progress, every = self.progress, self.save_every
        if progress.step == self.saved_step or progress.nonfinite_in_row or self.settings.checkpoint_every == "end":
            return False
        if every is not None and every.unit == "steps":
            return progress.step - self.saved_step >= every.amount
        return self.together.save_due(self.wants_save)

    def wants_save(self) -> bool:
        progress = self.progress
        if self.parts.saver.busy:
            return False
        if self.save_every is None:
            failure_every_s = parse_seconds(self.settings.failure_every)
            return progress.elapsed_s - self.saved_s >= self.parts.saver.best_interval_s(failure_every_s)
        return progress.elapsed_s - self.saved_s >= self.save_every.amount

    def save(self, *, wait: bool = False, again: bool = False) -> None:
        """`again`: also if this step has been saved, since more is known of it now."""
        if self.log.behind(self.progress):
            self.read_log()
        self.at("checkpoint")
        progress = self.progress
        if again or progress.step != self.saved_step:
            if not self.is_finite():
                self.events.emit("checkpoint_refused", step=progress.step, why="some weights are not finite")
                return
            progress.micro_batch = self.parts.step.passes.micro_batch
            average_statistics(self.parts.state.model, self.world)
            self.ledger.lap("checkpoint")
            progress.ledger = self.ledger.to_dict()
            self.parts.saver.save(progress.step, self.parts.state.tree(progress, self.parts.stream_state()), best=progress.best)
            self.saved_step, self.saved_s = progress.step, progress.elapsed_s
        if wait:
            self.parts.saver.wait()
        self.ledger.lap("checkpoint")

    def roll_back(self, why: str) -> None:
        """Back to the last good checkpoint at half the rate; after a few times of that, stop with the reason."""
        failed = self.progress
        self.parts.saver.wait()
        found = self.last_good()
        if failed.rollbacks >= MAX_ROLLBACKS or found is None:
            raise Diverged(
                f"{why}; rolled back {failed.rollbacks} times, last to {failed.rate_factor:g} of the rate: "
                f"lower lr (it is {self.job.lr:g}), set clip: 1.0, or look for bad values in the data"
            )
        self.restore(found)
        progress = self.progress
        progress.rate_factor, progress.rollbacks = failed.rate_factor / 2, failed.rollbacks + 1
        progress.skipped, progress.elapsed_s, progress.energy_j = failed.skipped, failed.elapsed_s, failed.energy_j
        self.parts.budget.begin(progress)
        self.log.start_at(progress)
        self.saved_step = -1  # the same step again, at the lower rate, is worth keeping
        self.events.emit("rolled_back", step=progress.step, from_step=failed.step, rate_factor=progress.rate_factor, why=why)

    def last_good(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole. The first process finds it and all read it, or each its part."""
        if self.world.is_split:
            if not self.parts.checkpoints.steps():
                return None
            here = self.parts.state.tree_to_fill(self.progress, self.parts.stream_state())
            whole = self.parts.checkpoints.load_latest(self.on_damage, into=here)
            if whole is None:
                self.parts.state.nothing_to_fill()
            return self.found(whole)
        if self.parts.state.local is not None:  # whole: another number of processes needs the parts of all
            return self.found(self.parts.checkpoints.load_latest(self.on_damage))
        checkpoints = self.folder.checkpoints()
        found = checkpoints.load_latest(self.on_damage) if self.world.is_first else None
        step = self.world.from_first(None if found is None else found[0])
        if step is None:
            return None
        return self.found((step, checkpoints.load(step)) if found is None else found)

    def found(self, checkpoint: tuple[int, dict[str, Any]] | None) -> dict[str, Any] | None:
        if checkpoint is None:
            return None
        self.found_step, tree = checkpoint
        return tree

    def restore(self, tree: dict[str, Any]) -> None:
        with self.fits():
            self.progress = self.parts.state.restore(tree)
        self.parts.step.update.state_loaded()
        self.saved_step, self.saved_s = self.progress.step, self.progress.elapsed_s
        self.parts.seek(self.progress.samples, tree.get("stream"))
        if self.progress.micro_batch:
            self.parts.step.passes.micro_batch = self.progress.micro_batch
            self.parts.step.passes.warm(self.job.batch)

    def fits(self) -> AbstractContextManager[None]:
        return fits_the_run(self.folder.checkpoints().path(self.found_step))

    def leave(self) -> None:
        name, save_s, grace_s = str(self.stop.signal_name), self.parts.saver.times.last_s, parse_seconds(self.settings.grace)
        fits = "fits in" if save_s < grace_s else "is LONGER than"
        took = f"; a save takes {show_seconds(save_s)}, which {fits} the grace period of {self.settings.grace}"
        step, kept = self.progress.step, self.folder.checkpoints().steps()
        missed = f"step {step} could NOT be saved, the last checkpoint is {kept[-1:]}"
        saved = f"saved at step {step}" if step in kept else missed
        self.events.emit("stopped", signal=name, step=step, saved=step in kept, save_s=save_s, grace_s=grace_s)
        raise Stopped(
            name,
            self.stop.exit_code,
            f"{name}: {saved}{took if save_s else ''}. The same command goes on from here.",
        )

    def on_damage(self, step: int, what: str) -> None:
        self.events.emit("checkpoint_damaged", step=step, why=what)
        if not self.world.is_first:
            return
        with suppress(OSError):
            self.folder.checkpoints().set_aside(step)

    def on_evaluation_split(self, before: int, after: int, reason: str) -> None:
        why = f"out of memory at {before} samples at a time: {reason}"
        self.events.emit("degraded", what="evaluation_batch", value=after, why=why)
