"""Where the time of a request goes, which part bounds the rate, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_rate, show_seconds
from flatout.serving.history import Between, parts_of

_WORDS = {
    "wire": "the request arrives: the client and the network",
    "parse": "HTTP and JSON or binary",
    "decode": "raw rows become tensors",
    "hook": "your own functions",
    "queue": "waits for its batch",
    "copy": "rows to the device and answers back",
    "compute": "the model",
    "encode": "the answer is written",
    "total": "all of it",
}
_HIGH = 0.8
_FRONT_PARTS = ("parse", "decode", "hook", "encode")


def serving_doc(between: Between | None) -> Doc:
    if between is None:
        return Doc((TextLine("nothing is known yet: the server has just started"),))
    names = list(between.after.tallies)
    nodes: list[Node] = []
    for name in names:
        nodes += _model(between, name)
    nodes += _bound(between)
    return Doc(tuple(nodes))


def _model(between: Between, name: str) -> list[Node]:
    rate = between.requests_per_s(name)
    goal = between.after.status.get("goals", {}).get(name)
    heading = f"{name}: {show_rate(rate, 'requests')} over the last {between.seconds:.0f} s" + (
        f", goal {goal}" if goal else ""
    )
    if not rate:
        return [TextLine(heading, strong=True), TextLine()]
    parts = parts_of(between, name)
    total_s = parts["total"][2]
    rows = [
        {
            "part": part,
            "p50": Cell(median, show_seconds(median)),
            "p99": Cell(high, show_seconds(high)),
            "share": Cell(mean / total_s if total_s else 0.0, f"{mean / total_s:.0%}" if total_s else ""),
            "what": _WORDS[part],
        }
        for part, (median, high, mean) in parts.items()
        if mean or part == "total"
    ]
    other = 1 - sum(mean for part, (_, _, mean) in parts.items() if part != "total") / total_s if total_s else 0.0
    what = "between the processes, and waiting for a core"
    rows.insert(-1, {"part": "other", "share": Cell(other, f"{max(0.0, other):.0%}"), "what": what})
    columns = [TableColumn("part", "part"), TableColumn("p50", "p50", right=True), TableColumn("p99", "p99", right=True),
               TableColumn("share", "of the mean", right=True), TableColumn("what", "")]  # fmt: skip
    reasons = {key: count for key, count in between.reasons(name).items() if count}
    total = max(1, sum(reasons.values()))
    sent = ", ".join(f"{key} {count / total:.0%}" for key, count in sorted(reasons.items(), key=lambda one: -one[1]))
    batches = f"batches of {between.batch_rows(name):.3g} rows on average; sent because: {sent}" if reasons else ""
    key = f"parts of {name}"
    return [TextLine(heading, strong=True), Table(key, columns, rows), *([TextLine(batches)] if batches else []), TextLine()]


def _bound(between: Between) -> list[Node]:
    device, fronts, cores = between.device_share(), between.front_share(), between.core_share()
    status = between.after.status
    shares = {"device": device, "fronts": fronts, "cores": cores}
    count = status.get("fronts", 1)
    words = f"busy: device {device:.0%} of the time; {count} for connections, each {fronts:.0%} of a core; "
    words += f"{cores:.0%} of {status.get('cores', 1)} cores in all"
    return [Fields({"busy": shares}), TextLine(words), TextLine(_advice(between, shares, status))]


def _advice(between: Between, shares: Mapping[str, float], status: Mapping[str, Any]) -> str:
    if max(shares.values()) < _HIGH:
        return "nothing is at its limit: the rate is what clients ask for"
    if shares["device"] >= _HIGH and shares["device"] >= shares["fronts"]:
        names = [name for name in between.after.tallies if between.rows_per_s(name)]
        batch = max((between.batch_rows(name) for name in names), default=0.0)
        curves = [status.get("models", {}).get(name, {}).get("curve", []) for name in names]
        best = max(((rows / seconds, rows) for curve in curves for rows, seconds in curve), default=(0.0, 0))
        return (
            f"the device bounds the rate, in batches of {batch:.3g} rows; its best is {show_rate(best[0], 'rows')} in batches "
            f"of {best[1]:.0f}. A goal with more time allows larger batches; a smaller model does more in the same time"
        )
    if shares["cores"] >= _HIGH:
        return "the cores of the machine bound the rate: the model, the processes for connections and others share them"
    costs = {part: sum(between.mean_s(name, part) for name in between.after.tallies) for part in _FRONT_PARTS}
    slow = max(costs, key=lambda part: costs[part])
    return (
        f"the processes for connections bound the rate, mostly with {slow} ({_WORDS[slow]}). More of them (--workers), or "
        "requests that cost less: tensors over the binary protocol need no decoding"
    )
