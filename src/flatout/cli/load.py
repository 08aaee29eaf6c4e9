"""load: measure a server."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.base.errors import UsageError
from flatout.cli.durations import seconds_if, seconds_of
from flatout.cli.output import check_page_path, print_json, write_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatout.base.tree import Doc
    from flatout.loadtest.arrivals import Seconds
    from flatout.loadtest.goal import LoadGoal
    from flatout.loadtest.measuring import LoadResult, LoadTest

_RATE = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*(k?)\s*(?:/\s*(s|sec|min|h))?\s*", re.IGNORECASE)
_PER_S = {"s": 1.0, "sec": 1.0, "min": 1 / 60, "h": 1 / 3600}
_LONGEST_WARM_S, _WARM_SHARE = 1.0, 0.1
_PROBE_S, _PROBE_CONNECTIONS = 1.0, 8
_INTERRUPTED = 130


@dataclass(frozen=True)
class _Search:
    """The options that --find uses."""

    first_rate: float | None
    step_s: float | None
    warm_s: float | None
    arrivals: str
    seed: int


@dataclass(frozen=True)
class _Output:
    """How a result is shown. `asked`: what was asked for, which JSON and the page say too."""

    asked: dict[str, Any]
    as_json: bool
    html: Path | None

    def show(self, text: str, data: dict[str, Any], doc: Callable[[dict[str, Any]], Doc]) -> None:
        print_json({**self.asked, **data}) if self.as_json else print(text)
        if self.html is not None:
            from flatout.base.html import to_html

            write_page(self.html, to_html(doc(self.asked), f"Load on {self.asked['url']}"))
            _say(f"wrote {self.html}")


def load(
    url: Annotated[
        str, typer.Argument(help="The server, such as http://127.0.0.1:8000. A path is used as it is.", show_default=False)
    ],
    rate: Annotated[
        str | None, typer.Option("--rate", help="Requests per second, such as 2000/s. With --find: where to begin.")
    ] = None,
    seconds: Annotated[str | None, typer.Option("--for", help="How long. Default 10 s. With --find: each step.")] = None,
    row: Annotated[str | None, typer.Option("--row", help="One row as JSON, sent to /predict.")] = None,
    rows: Annotated[Path | None, typer.Option("--rows", help="A .csv or .jsonl file: its rows in turn, one a request.")] = None,
    body: Annotated[Path | None, typer.Option("--body", help="A file that is the body of each request.")] = None,
    content_type: Annotated[str | None, typer.Option("--type", help="Content type of --body.")] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Random tensors by the model's metadata. The default.")] = False,
    json_tensors: Annotated[bool, typer.Option("--json-tensors", help="The same as JSON, not in the binary form.")] = False,
    model: Annotated[str | None, typer.Option("--model", help="Which model, if the server has several.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Rows in a request of random tensors.")] = 1,
    header: Annotated[list[str] | None, typer.Option("--header", help="'Name: value'. May be given several times.")] = None,
    arrivals: Annotated[
        str, typer.Option("--arrivals", help="poisson, constant, or a file with a time in seconds a line.")
    ] = "poisson",
    closed: Annotated[int | None, typer.Option("--closed", min=1, help="Closed loop: this many connections, no rate.")] = None,
    slo: Annotated[str | None, typer.Option("--slo", help="A goal, such as 'p99 50 ms'. Exit code 1 if it is missed.")] = None,
    find: Annotated[bool, typer.Option("--find", help="Find the highest rate that holds --slo.")] = False,
    connections: Annotated[int, typer.Option("--connections", min=1, help="Connections at most.")] = 1024,
    processes: Annotated[str, typer.Option("--processes", help="Sending processes. auto: by rate and cores.")] = "auto",
    timeout: Annotated[str, typer.Option("--timeout", help="After it a request has failed.")] = "10 s",
    retry: Annotated[bool, typer.Option("--retry", help="Ask once more after a connection was reset.")] = False,
    warm_up: Annotated[
        str | None, typer.Option("--warm-up", help="Left out of the figures. Default 1 s, a tenth at most.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept any TLS certificate.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of arrivals and tensors.")] = 0,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a server with requests at scheduled times. Latency counts from the scheduled time, waiting included.

    Example: flatout load http://127.0.0.1:8000 --rate 200/s --for 30s --html load.html
    """
    from flatout.loadtest.content import LoadContent
    from flatout.loadtest.goal import LoadGoal
    from flatout.loadtest.measuring import LoadLimits, LoadTest, processes_for
    from flatout.loadtest.one_answer import check_first
    from flatout.loadtest.target import LoadTarget

    if html is not None:
        check_page_path(html)
    goal = LoadGoal.parse(slo) if slo is not None else None
    _check(rate, closed, find, goal, arrivals)
    run_s, warm_s = seconds_if("--for", seconds), seconds_if("--warm-up", warm_up)
    rate_per_s = None if rate is None else _rate(rate)
    times_s, run_s = _schedule(arrivals, rate_per_s, run_s, seed) if not (closed or find) else (None, run_s)
    limits = LoadLimits(connections, seconds_of("--timeout", timeout), retry)
    target = LoadTarget.parse(url, verify=not insecure)
    content = LoadContent(row, rows, body, content_type, tensors, json_tensors, model, batch, tuple(header or ()))
    requests = content.requests(target, limits.timeout_s, seed)
    check_first(target, requests[0], limits.timeout_s)
    size = sum(len(one.body) for one in requests) / len(requests)
    known_rate = None if times_s is None or run_s is None else len(times_s) / run_s
    count = min(connections, processes_for(known_rate, size) if processes == "auto" else _process_count(processes))
    first = requests[0]
    in_turn = f", {len(requests):,} different ones in turn" if len(requests) > 1 else ""
    _say(f"{target}: {first.method} {first.path}, {len(first.body):,} bytes of body{in_turn}")
    asked = {"url": str(target), "method": first.method, "path": first.path, "body_bytes": size, "bodies": len(requests)}
    output = _Output({**asked, "arrivals": None if closed else arrivals, "seed": seed}, as_json, html)
    with LoadTest(target, requests, limits, count) as test:
        if find:
            assert goal is not None
            _find(test, goal, _Search(rate_per_s, run_s, warm_s, arrivals, seed), output)
        elif closed:
            run_s = run_s or 10.0
            _report(test.closed_loop(closed, run_s, _warm(run_s, warm_s)), goal, output)
        else:
            assert times_s is not None and run_s is not None
            _report(test.open_loop(times_s, run_s, _warm(run_s, warm_s)), goal, output)


def _check(rate: str | None, closed: int | None, find: bool, goal: LoadGoal | None, arrivals: str) -> None:
    if find and goal is None:
        raise UsageError("--find needs a goal: --slo 'p99 50 ms'")
    if closed and (rate is not None or find):
        raise UsageError("--closed has no rate: its connections ask as fast as they get answers. Leave out --rate and --find")
    if find and arrivals not in ("poisson", "constant"):
        raise UsageError("--find makes its own arrivals: --arrivals poisson or constant")
    if not find and not closed and rate is None and arrivals in ("poisson", "constant"):
        raise UsageError("how many requests per second? --rate 100/s, or --find with --slo, or --closed 8")


def _schedule(arrivals: str, rate: float | None, run_s: float | None, seed: int) -> tuple[Seconds, float]:
    from flatout.loadtest.arrivals import constant, poisson, recorded

    if arrivals in ("poisson", "constant"):
        assert rate is not None
        run_s = run_s or 10.0
        return (poisson(rate, run_s, seed) if arrivals == "poisson" else constant(rate, run_s)), run_s
    if arrivals == "recorded":
        raise UsageError("--arrivals: name the file with the recorded times: --arrivals times.txt")
    if rate is not None:
        raise UsageError("recorded arrivals have a rate of their own: leave out --rate")
    times_s = recorded(Path(arrivals))
    if run_s is None:
        return times_s, float(times_s[-1]) + 1e-3
    return times_s[times_s < run_s], run_s


def _report(result: LoadResult, goal: LoadGoal | None, output: _Output) -> None:
    from flatout.loadtest.page import result_doc
    from flatout.loadtest.showing import result_data, result_text

    output.show(result_text(result, goal), result_data(result, goal), lambda asked: result_doc(result, goal, asked))
    if result.recorded.was_interrupted:
        raise typer.Exit(_INTERRUPTED)
    if goal is not None and result.figures.share_within(goal) < goal.share:
        raise typer.Exit(1)


def _find(test: LoadTest, goal: LoadGoal, asked: _Search, output: _Output) -> None:
    from flatout.loadtest.finding import RateSearch
    from flatout.loadtest.page import search_doc
    from flatout.loadtest.showing import search_data, search_text, step_line

    first_rate = asked.first_rate
    if first_rate is None:
        probe = test.closed_loop(_PROBE_CONNECTIONS, _PROBE_S, 0.0)
        if probe.recorded.was_interrupted:
            raise typer.Exit(_INTERRUPTED)
        probed = probe.figures.achieved_rate
        first_rate = max(1.0, float(f"{probed / 4:.2g}"))
        _say(f"{_PROBE_CONNECTIONS} connections in a closed loop get {probed:,.0f} answers/s: the search begins at a quarter")
    steps = 0

    def measure(rate: float, measured_s: float) -> LoadResult:
        nonlocal steps
        steps += 1  # so that no two steps have the same bursts
        warm_s = _warm(measured_s, asked.warm_s)
        times_s, _ = _schedule(asked.arrivals, rate, measured_s + warm_s, asked.seed + steps)
        return test.open_loop(times_s, measured_s + warm_s, warm_s)

    found = RateSearch(measure, goal, asked.step_s, lambda step: _say(step_line(step, goal))).run(first_rate)
    output.show(search_text(found, goal), search_data(found, goal), lambda asked: search_doc(found, goal, asked))
    if found.was_interrupted:
        raise typer.Exit(_INTERRUPTED)
    if found.rate is None:
        raise typer.Exit(1)


def _warm(run_s: float, asked_s: float | None) -> float:
    if asked_s is None:
        return min(_LONGEST_WARM_S, _WARM_SHARE * run_s)
    if asked_s >= run_s:
        raise UsageError(f"--warm-up of {asked_s:g} s leaves nothing of a run of {run_s:g} s: take a longer --for")
    return asked_s


def _rate(text: str) -> float:
    match = _RATE.fullmatch(text)
    rate = 0.0
    if match is not None:
        rate = float(re.sub(r"[_,]", "", match[1])) * (1000 if match[2] else 1) * _PER_S[(match[3] or "s").lower()]
    if rate <= 0:
        raise UsageError(f"--rate: expected requests per second, such as 2000/s, got {text!r}")
    return rate


def _process_count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise UsageError(f"--processes: expected auto or a number from 1 to 256, got {text!r}")
    return int(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
