"""The result of a load test, as a screen for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.base.tree import Doc, Node, Table, TableColumn, TextLine, to_text
from flatout.base.units import show_bytes, show_seconds
from flatout.loadtest.figures import ALL_QUANTILES, QUANTILES, LoadFigures, LoadSpan, merged_spans
from flatout.loadtest.finding import HighestRate, LoadStep
from flatout.loadtest.goal import LoadGoal
from flatout.loadtest.measuring import LoadResult
from flatout.loadtest.outcomes import ADMISSION_REFUSED, WORDS

_MOST_LINES = 30
_BAR = 30
_GENERATOR_LIMITED = [
    "THE GENERATOR WAS THE LIMIT there, not the server, which may hold more: add --processes, stop other programs,",
    "or run the generator on another machine",
]
_SERVER_WORDS = {
    "x-flatout-queue-ms": "queue {:.3g} ms",
    "x-flatout-compute-ms": "compute {:.3g} ms",
    "x-flatout-batch": "batch {:.3g} rows",
}


def result_text(result: LoadResult, goal: LoadGoal | None) -> str:
    found, recorded = result.figures, result.recorded
    lines = []
    if recorded.was_interrupted:
        lines.append(f"interrupted after {show_seconds(recorded.ended_s)}; the figures are of the time until then")
    if result.job.closed:
        lines.append(f"{result.job.closed} connections in a closed loop: {found.achieved_rate:,.1f} answers/s")
        lines.append(
            "each waits for its answer before it asks again: a slow server is asked less often, and these latencies hide"
        )
        lines.append("the time that requests at a fixed rate would wait; --rate measures it")
    else:
        lines.append(f"offered {found.offered_rate:,.1f}/s, answered {found.achieved_rate:,.1f}/s")
    warm = f"{show_seconds(found.measured_s)} measured after {show_seconds(found.warm_s)} of warm-up, which is left out"
    lines.append(f"{found.scheduled:,} requests in {warm}; {show_bytes(recorded.received_bytes)} received")
    lines += ["", *_latency_lines(found, bool(result.job.closed)), "", *_outcome_lines(result)]
    if said := _server_words(recorded.said):
        lines.append(f"the server says   {said} (means)")
    lines += _generator_lines(result)
    if (problem := result.generator_problem) is not None:
        lines += [
            "",
            "THE GENERATOR WAS THE LIMIT, not the server: latencies are upper bounds, and the server may answer at a higher",
            f"rate. {problem[0].upper()}{problem[1:]}",
        ]
    if goal is not None:
        within = found.share_within(goal)
        told = f"{percent(within)} of all requests had a good answer within {show_seconds(goal.limit_s)}"
        lines += ["", f"goal {goal}: {'held' if within >= goal.share else 'MISSED'}; {told}"]
    lines += ["", *_plot(found.spans)]
    return "\n".join(lines)


def result_data(result: LoadResult, goal: LoadGoal | None) -> dict[str, Any]:
    found, recorded = result.figures, result.recorded
    data: dict[str, Any] = {
        "offered_rate": None if result.job.closed else found.offered_rate,
        "achieved_rate": found.achieved_rate,
        "closed_connections": result.job.closed or None,
        "measured_s": found.measured_s,
        "warm_up_s": found.warm_s,
        "interrupted": recorded.was_interrupted,
        "requests": found.scheduled,
        "good": found.good,
        "unanswered": found.unanswered,
        "admission_refused": found.admission_refused,
        "statuses": {str(code): count for code, count in found.statuses.items()},
        "errors": {kind.name.lower(): count for kind, count in found.failures.items()},
        "retried": recorded.retried,
        "received_bytes": recorded.received_bytes,
        "latency_ms": {"mean": 1e3 * found.mean_s, **{_name(share): 1e3 * found.latency_s(share) for share in QUANTILES},
                       "max": 1e3 * found.latency_s(1.0)},
        "latency_quantiles_ms": [[share, 1e3 * found.latency_s(share)] for share in ALL_QUANTILES],
        "seconds": [_span_data(span) for span in found.spans],
        "server_says": recorded.said,
        "generator": {
            "processes": len(recorded.cpu_shares),
            "cpu_share": max(recorded.cpu_shares),
            "starved_share": max(recorded.starved_shares),
            "lag_ms": {**{_name(share): 1e3 * found.lag_s(share) for share in QUANTILES}, "max": 1e3 * found.lag_s(1.0)},
            "connections": recorded.most_open,
            "waited_for_connections": recorded.has_waited,
            "was_the_limit": result.generator_problem is not None,
            "why": result.generator_problem,
        },
    }  # fmt: skip
    if goal is not None:
        within = found.share_within(goal)
        data["goal"] = {
            "share": goal.share,
            "limit_ms": 1e3 * goal.limit_s,
            "share_within": within,
            "held": within >= goal.share,
        }
    return data


def step_line(step: LoadStep, goal: LoadGoal) -> str:
    """While the search goes on."""
    found = step.result.figures
    return f"{rate_text(step.rate):>9}/s  {_name(goal.share)} {show_seconds(found.latency_s(goal.share)):>8}  {_verdict(step)}"


def search_text(found: HighestRate, goal: LoadGoal) -> str:
    nodes: list[Node] = [TextLine(line) for line in found_lines(found, goal)]
    return to_text(Doc([*nodes, TextLine(), step_table(found, goal)]))


def step_table(found: HighestRate, goal: LoadGoal) -> Table:
    columns = [TableColumn("rate", "offered/s", right=True), TableColumn("achieved", "answered/s", right=True),
               TableColumn("requests", "requests", right=True), TableColumn("latency", _name(goal.share), right=True),
               TableColumn("verdict", f"goal {goal}")]  # fmt: skip
    return Table("steps", columns, [_step_row(step, goal) for step in found.steps])


def search_data(found: HighestRate, goal: LoadGoal) -> dict[str, Any]:
    return {
        "goal": {"share": goal.share, "limit_ms": 1e3 * goal.limit_s},
        "highest_rate": found.rate,
        "lowest_missed_rate": found.missed,
        "confirmed": found.confirmed,
        "interrupted": found.was_interrupted,
        "generator_was_the_limit": found.is_generator_limited,
        "steps": [
            {"rate": step.rate, "held": step.held, "why": step.why or None, **result_data(step.result, goal)}
            for step in found.steps
        ],
    }


def found_lines(found: HighestRate, goal: LoadGoal) -> list[str]:
    lines = ["interrupted; this is what was found until then"] if found.was_interrupted else []
    if found.rate is None:
        lowest = min((step.rate for step in found.steps), default=0.0)
        lines.append(f"no rate held {goal}; the lowest tried was {rate_text(lowest)}/s")
        return lines + (_GENERATOR_LIMITED if found.is_generator_limited else [])
    if found.missed is None:
        return [*lines, f"{rate_text(found.rate)}/s holds {goal}; no rate that misses it was found"]
    best = [step for step in found.steps if step.rate == found.rate and step.held]
    lines.append(f"{rate_text(found.rate)}/s is the highest rate that holds {goal}")
    worst_s = max(step.result.figures.latency_s(goal.share) for step in best)
    times = "once" if len(best) == 1 else f"{len(best)} times"
    count = sum(step.result.figures.scheduled for step in best)
    lines.append(f"it held {times}, {count:,} requests, {_name(goal.share)} at most {show_seconds(worst_s)}")
    if found.is_generator_limited:
        lines += [f"at {rate_text(found.missed)}/s it is missed", *_GENERATOR_LIMITED]
    else:
        why = next(step.why for step in reversed(found.steps) if step.rate == found.missed and not step.held)
        lines.append(f"at {rate_text(found.missed)}/s it is missed: {why}")
    return lines


def _step_row(step: LoadStep, goal: LoadGoal) -> dict[str, Any]:
    found = step.result.figures
    return {
        "rate": rate_text(step.rate),
        "achieved": rate_text(found.achieved_rate),
        "requests": f"{found.scheduled:,}",
        "latency": show_seconds(found.latency_s(goal.share)),
        "verdict": f"{_verdict(step)}{' (generator at its limit)' if step.is_ours else ''}",
    }


def _verdict(step: LoadStep) -> str:
    if not step.held:
        return f"missed: {step.why}"
    without = step.result.figures.not_good
    return f"held; {without:,} got no good answer" if without else "held"


def _latency_lines(found: LoadFigures, is_closed: bool) -> list[str]:
    if not found.good:
        return ["latency   no request got a good answer"]
    cells = [(_name(share), found.latency_s(share)) for share in QUANTILES]
    cells += [("max", found.latency_s(1.0)), ("mean", found.mean_s)]
    since = "of good answers, from when the request was sent" if is_closed else "of good answers, from the scheduled time"
    return [
        f"latency {since}",
        "  " + "  ".join(f"{name:>8}" for name, _ in cells),
        "  " + "  ".join(f"{show_seconds(value):>8}" for _, value in cells),
    ]


def _outcome_lines(result: LoadResult) -> list[str]:
    found = result.figures
    parts = [
        f"{code}{' (refused by admission)' if code == ADMISSION_REFUSED else ''}: {n:,}" for code, n in found.statuses.items()
    ]
    parts += [f"{WORDS[kind]}: {count:,}" for kind, count in found.failures.items()]
    if result.recorded.retried:
        parts.append(f"retried after a reset: {result.recorded.retried:,}")
    if found.unanswered:
        parts.append(f"not answered yet: {found.unanswered:,}")
    return [f"outcomes          {', '.join(parts) or 'none'}"]


def _generator_lines(result: LoadResult) -> list[str]:
    found, recorded = result.figures, result.recorded
    count = len(recorded.cpu_shares)
    own = f"generator         {count} process{'es' if count > 1 else ''}, {max(recorded.cpu_shares):.0%} of a core at most"
    if result.job.closed:
        return [own]
    lines = [f"{own}, sent late by {show_seconds(found.lag_s(0.5))} (p50), {show_seconds(found.lag_s(0.99))} (p99)"]
    if recorded.has_waited:
        lines.append(
            f"connections       all {recorded.most_open:,} were busy; latencies contain the time that requests waited for one"
        )
    return lines


def _server_words(said: dict[str, float]) -> str:
    return ", ".join(words.format(said[name]) for name, words in _SERVER_WORDS.items() if name in said)


def _plot(found: Sequence[LoadSpan]) -> list[str]:
    """A line for a second, or for several of a long run: the median as #, the rest up to p99 as -."""
    groups = merged_spans(found, _MOST_LINES)
    rows = [(group[0].from_s, group[-1].to_s, sum(s.scheduled for s in group), sum(s.good for s in group),
             _worst([s.p50_s for s in group]), _worst([s.p99_s for s in group])) for group in groups]  # fmt: skip
    longest_s = _worst([row[5] for row in rows])
    lines = ["     from  offered/s  not good       p50       p99"]
    for from_s, to_s, scheduled, good, p50_s, p99_s in rows:
        figures = f"{from_s:7.1f} s  {scheduled / max(1e-9, to_s - from_s):>9,.0f}  {scheduled - good:>8,}"
        if p99_s != p99_s:
            lines.append(f"{figures}         -         -")
            continue
        dark, whole = (round(_BAR * value / longest_s) if longest_s else 0 for value in (p50_s, p99_s))
        bar = "#" * dark + "-" * (whole - dark)
        lines.append(f"{figures}  {show_seconds(p50_s):>8}  {show_seconds(p99_s):>8}  {bar}".rstrip())
    return lines


def _worst(values: Sequence[float]) -> float:
    return max((value for value in values if value == value), default=float("nan"))


def _span_data(span: LoadSpan) -> dict[str, Any]:
    return {"from_s": span.from_s, "to_s": span.to_s, "requests": span.scheduled, "good": span.good, "p50_ms": 1e3 * span.p50_s,
            "p99_ms": 1e3 * span.p99_s, "max_ms": 1e3 * span.max_s}  # fmt: skip


def _name(share: float) -> str:
    return f"p{100 * share:g}"


def percent(share: float) -> str:
    """Never rounded up to a goal that was missed."""
    return f"{int(1e5 * share) / 1e3:g}%"


def rate_text(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.4g}"
