"""The page of one run, and that of several: which parts it has, and in which order."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from flatout.base.errors import StoreError
from flatout.base.tree import Cell, Charts, Code, Doc, Figure, Figures, Node, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_count, show_energy, show_flops, show_metric, show_rate, show_seconds, show_share
from flatout.measure.ledger import ROWS, Ledger
from flatout.plan.explain import explain
from flatout.plan.receipt_view import receipt_doc
from flatout.reporting.advice import advice_nodes
from flatout.reporting.charts import charts_of
from flatout.reporting.command import command_of
from flatout.reporting.energies import energies_nodes
from flatout.reporting.ledger_bar import ledger_picture
from flatout.reporting.moments import moment_nodes
from flatout.reporting.speeds import speed_nodes
from flatout.reporting.spent import meter_note, spent_nodes
from flatout.reporting.story import RunStory
from flatout.runs.scores import overall
from flatout.store.compare import compare_doc

_MOST_METRICS = 6  # at the top; the curves have all


def run_doc(story: RunStory, judged: Sequence[Node] = ()) -> Doc:
    """`judged`: what the model says about held-out rows."""
    charts, missing = charts_of([story])
    above = [*at_first_glance(story), *what_is_missing(story, missing), *_curves(charts)]
    return Doc((*above, *judged, *below_the_curves(story, is_judged=bool(judged))))


def at_first_glance(story: RunStory) -> list[Node]:
    return [*_state(story), Figures(_figures(story))]


def what_is_missing(story: RunStory, missing: Sequence[str]) -> list[Node]:
    """`missing`: why curves lack points."""
    return _troubles([*story.troubles, *missing])


def below_the_curves(story: RunStory, *, is_judged: bool = False) -> list[Node]:
    return [
        *advice_nodes(story, is_judged=is_judged),
        *moment_nodes(story),
        *_plan(story),
        *_trials(story),
        *_predictions(story),
        *_ledger(story),
        *spent_nodes(story),
        *_again(story),
        *_environment(story),
    ]


def runs_doc(stories: Sequence[RunStory]) -> Doc:
    charts, missing = charts_of(stories)
    troubles = [f"{story.name}: {why}" for story in stories for why in story.troubles] + missing
    states = [node for story in stories if story.status != "finished" for node in _state(story, named=True)]
    nodes: list[Node] = [*states, *_troubles(troubles), *speed_nodes(stories), *energies_nodes(stories)]
    nodes += _curves(charts)
    try:
        nodes += compare_doc(*(story.folder for story in stories)).nodes
    except StoreError as error:
        nodes += [TextLine("Differences", strong=True), TextLine(f"The runs can't be compared: {error}")]
    for story in stories:
        nodes += moment_nodes(story, f"{story.name}: what happened", only_trouble=True)
    return Doc(tuple(nodes))


def _curves(charts: Charts | None) -> list[Node]:
    return [] if charts is None else [TextLine("Curves", strong=True), charts]


def headline(story: RunStory) -> str:
    """One line for the terminal."""
    parts = [story.status]
    parts += [f"{name} {show_metric(value)}" for name, value in list(_scores(story).items())[-1:]]
    if rate := _rate(story.result):
        parts.append(rate)
    return ", ".join(parts)


def _state(story: RunStory, *, named: bool = False) -> list[Node]:
    name, step = f"{story.name} " if named else "This run ", story.last_step
    until = "no step yet" if step is None else f"step {step:,}"
    words = {
        "running": f"is still training: the page shows it until {until}. Make it again for a newer one.",
        "interrupted": f"did not end: its process died at {until} or later. The same command resumes it.",
        "stopped": f"was stopped at {until}. The same command resumes it.",
        "failed": f"failed at {until}: {story.result.get('reason', 'see below')}.",
        "diverged": f"diverged at {until}: {story.result.get('reason', 'see below')}.",
        "damaged": "has damaged files; what can be read is shown.",
    }.get(story.status)
    return [] if words is None else [TextLine(name + words)]


def _troubles(troubles: Sequence[str]) -> list[Node]:
    if not troubles:
        return []
    shown, most = list(dict.fromkeys(troubles)), 20
    more = [TextLine(f"and {len(shown) - most} more")] if len(shown) > most else []
    return [TextLine("Not all of the run could be read", strong=True), *map(TextLine, shown[:most]), *more]


def _scores(story: RunStory) -> dict[str, float]:
    return {name: value for name, value in overall(story.metrics).items() if isinstance(value, int | float) and value == value}


def _rate(result: Mapping[str, Any]) -> str:
    tokens, samples = result.get("tokens_per_s"), result.get("samples_per_s")
    return show_rate(tokens, "tokens") if tokens else show_rate(samples, "samples") if samples else ""


def _figures(story: RunStory) -> list[Figure]:
    result, metrics, plan = story.result, story.metrics, story.plan
    steps = result.get("steps") or story.last_step
    reason = str(result.get("reason", "")) if story.status == "finished" else ""  # otherwise it is said above
    figures = [Figure("status", story.status, reason)]
    for name, value in list(_scores(story).items())[:_MOST_METRICS]:
        baseline = metrics.get(f"baseline.{name}")
        figures.append(Figure(_title(name), show_metric(value), _best_and_baseline(result, name, baseline)))
    if rate := _rate(result):
        figures.append(Figure("speed", rate, _expected(story)))
    prediction = None if plan is None else plan.prediction
    if prediction is not None and result.get("samples_per_s") and prediction.flops_per_sample and prediction.ceiling_flops:
        share = result["samples_per_s"] * prediction.flops_per_sample / prediction.ceiling_flops
        measured = f"{show_flops(prediction.ceiling_flops)} measured"
        figures.append(Figure("of the machine's peak", show_share(share), measured))
    if story.receipt is not None and story.receipt.gain is not None:
        figures.append(Figure("speed-up by settings", f"{story.receipt.gain:.2f}x", "trials against all settings off"))
    if steps:
        samples = result.get("samples")
        figures.append(Figure("steps", f"{steps:,}", f"{show_count(samples)} samples" if samples else ""))
    if seconds := result.get("train_seconds"):
        wall = result.get("wall_seconds")
        figures.append(Figure("training time", show_seconds(seconds), f"{show_seconds(wall)} in total" if wall else ""))
    if size := result.get("peak_memory_bytes"):
        figures.append(Figure("peak memory", show_bytes(size)))
    energy, cost = result.get("energy_wh"), result.get("cost_usd")
    if energy is not None:
        words = "unavailable" if not isinstance(energy, int | float) else show_energy(energy * 3600)
        figures.append(Figure("energy", words, meter_note(result)))
    if isinstance(cost, int | float):
        figures.append(Figure("cost", f"${cost:.2f}"))
    return figures


def _title(name: str) -> str:
    return {"loss": "loss, validation", "train_loss": "loss, training"}.get(name, name)


def _best_and_baseline(result: Mapping[str, Any], name: str, baseline: Any) -> str:
    best, parts = result.get("best") or {}, []
    if isinstance(baseline, int | float) and math.isfinite(baseline):
        parts.append(f"baseline {show_metric(baseline)}")
    if best.get("metric") == name and isinstance(best.get("value"), int | float):
        parts.append(f"best {show_metric(best['value'])} at step {best.get('step')}")
    return ", ".join(parts)


def _expected(story: RunStory) -> str:
    plan = story.plan
    rate = None if plan is None else plan.prediction.rate(plan.batch)
    return "" if plan is None or not rate else f"{show_rate(rate * plan.per_sample, plan.unit)} predicted"


def _plan(story: RunStory) -> list[Node]:
    if story.plan is None:
        return []
    doc = explain(story.plan, story.result, (), story.receipt)  # what was degraded is a part of its own
    rate = story.rate
    found = [TextLine(f"learning rate: {rate.get('lr')}, searched for when the run started: {rate.get('why')}")] if rate else []
    first, *others = doc.nodes
    named = TextLine(first.text) if isinstance(first, TextLine) else first
    return [TextLine("Plan", strong=True), named, *others, *found]


def _trials(story: RunStory) -> list[Node]:
    if story.receipt is None or not story.receipt.entries:
        return []
    return list(receipt_doc(story.name, story.receipt).nodes)


_PREDICTION_COLUMNS = (
    TableColumn("what", ""),
    TableColumn("predicted", "predicted", right=True),
    TableColumn("measured", "measured", right=True),
    TableColumn("ratio", "measured / predicted", right=True),
)


def _predictions(story: RunStory) -> list[Node]:
    """What the plan predicted for the whole run; its table has the gain of each setting."""
    plan, result = story.plan, story.result
    predicted = None if plan is None else plan.prediction.rate(plan.batch)
    measured = result.get("samples_per_s")
    if plan is None or not predicted or not measured:
        return []
    unit = plan.per_sample
    rows = [
        _prediction(f"speed in {plan.unit}/s", predicted * unit, measured * unit, show_count),
        _prediction("time per step", plan.batch / predicted, plan.batch / measured, show_seconds),
    ]
    return [TextLine("Predicted and measured", strong=True), Table("predictions", _PREDICTION_COLUMNS, rows)]


def _prediction(what: str, predicted: float, measured: float, show: Any) -> dict[str, Any]:
    ratio = measured / predicted
    return {
        "what": what, "predicted": Cell(predicted, show(predicted)), "measured": Cell(measured, show(measured)),
        "ratio": Cell(ratio, f"{ratio:.2f}"),
    }  # fmt: skip


def _ledger(story: RunStory) -> list[Node]:
    written = story.result.get("ledger")
    if not isinstance(written, Mapping):
        return []
    known = {row: float(spent) for row, spent in written.items() if row in ROWS and isinstance(spent, int | float)}
    drawn = ledger_picture(known)
    if drawn is None:
        return []
    ledger = Ledger()
    ledger.add(known)
    tables = [
        replace(node, rows=(), fold=(*node.rows, *node.fold), fold_note="rows of the ledger")
        for node in ledger.doc().nodes
        if isinstance(node, Table)
    ]
    return [TextLine("Where the time went", strong=True), drawn, *tables]


def _again(story: RunStory) -> list[Node]:
    if not story.recipe:
        return []
    nodes: list[Node] = [TextLine("To run it again", strong=True)]
    if command := command_of(story, "run", fresh=True):
        nodes.append(Code(command))
    elif story.origin is not None:
        nodes.append(TextLine("The run was started in Python: fo.run with the recipe below."))
    shown = {key: value for key, value in story.recipe.items() if value not in ({}, [], ())}
    written = story.draft or yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None)
    if len(written) > 6000:  # it can have what was fitted on data in memory
        written = f"{written[:6000]}\n... ({len(written):,} characters; all are in {story.folder.path / 'recipe.json'})"
    nodes.append(Code(written))
    return nodes


_FACTS = (TableColumn("key", ""), TableColumn("value", ""))


def _environment(story: RunStory) -> list[Node]:
    facts = story.environment
    if not facts and not story.about:
        return []
    cpu, gpus = facts.get("cpu") or {}, facts.get("gpus") or []
    created = story.about.get("created")
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(created)) if isinstance(created, int | float) else None
    memory = facts.get("memory_total_bytes")
    shown = {
        "folder": str(Path(story.folder.path).resolve()),
        "began": when,
        "flatout": story.about.get("version"),
        "torch": facts.get("torch"),
        "cuda": facts.get("cuda"),
        "driver": facts.get("driver"),
        "python": facts.get("python"),
        "platform": facts.get("platform"),
        "GPUs": ", ".join(str(gpu.get("name", gpu)) if isinstance(gpu, Mapping) else str(gpu) for gpu in gpus) or None,
        "CPU": cpu.get("model"),
        "cores": cpu.get("affinity_cores") or cpu.get("physical_cores"),
        "memory": show_bytes(memory) if isinstance(memory, int | float) else None,
        "identity": story.about.get("identity"),
    }
    libraries = facts.get("libraries") or {}
    rows = [{"key": key, "value": str(value)} for key, value in shown.items() if value is not None]
    fold = [{"key": key, "value": str(value)} for key, value in libraries.items()]
    return [TextLine("Where it ran", strong=True), Table("environment", _FACTS, rows, fold=fold, fold_note="libraries")]
