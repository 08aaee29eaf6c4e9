"""The counters in Prometheus' text format, with Triton's names where Triton has one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flatout.serving.counters import CODES, PARTS, SharedCounters

_US = 1e6
_TRITON = (
    ("nv_inference_request_success", "Requests that were answered"),
    ("nv_inference_request_failure", "Requests that were refused or failed"),
    ("nv_inference_count", "Rows that were answered"),
    ("nv_inference_exec_count", "Batches that were run"),
    ("nv_inference_request_duration_us", "Time of all requests"),
    ("nv_inference_queue_duration_us", "Time in the queue"),
    ("nv_inference_compute_input_duration_us", "Time to prepare and copy rows"),
    ("nv_inference_compute_infer_duration_us", "Time of the model"),
    ("nv_inference_compute_output_duration_us", "Time to write answers"),
)
_HISTOGRAM_STEP = 4  # of the counters' steps, so that a metric has 25 buckets for each part


def metrics_text(counters: SharedCounters, versions: Mapping[str, tuple[str, int]], status: Mapping[str, Any]) -> str:
    """`versions`: of each model its version, and the place of its counters."""
    lines: list[str] = []
    rows = [(f'{{model="{_escaped(name)}",version="{version}"}}', _triton(counters, name, place, status))
            for name, (version, place) in versions.items()]  # fmt: skip
    for number, (metric, help_text) in enumerate(_TRITON):
        lines += _family(metric, help_text, "counter", [(labels, values[number]) for labels, values in rows])
    lines += _requests(counters, versions)
    lines += _parts(counters, versions)
    said = status.get("models", {})
    batches = [(f'{{model="{_escaped(name)}",reason="{reason}"}}', count)
               for name in versions for reason, count in said.get(name, {}).get("reasons", {}).items()]  # fmt: skip
    lines += _family("flatout_batches_total", "Batches by the reason for which they were sent", "counter", batches)
    waiting = [(f'{{model="{_escaped(name)}"}}', said.get(name, {}).get("waiting_rows", 0)) for name in versions]
    lines += _family("nv_inference_pending_request_count", "Rows that wait for their batch", "gauge", waiting)
    lines += _family("flatout_connections", "Open connections", "gauge", [("", sum(counters.connections()))])
    sampled = zip(('{outcome="kept"}', '{outcome="dropped"}'), counters.sampled(), strict=True)
    lines += _family("flatout_sampled_requests_total", "Requests for the folder of --sample-to", "counter", sampled)
    lines += _family("flatout_fronts", "Processes that take connections", "gauge", [("", status.get("fronts", 1))])
    cpu = [('{process="fronts"}', counters.cpu_s()), ('{process="executor"}', status.get("executor_cpu_s", 0.0))]
    lines += _family("flatout_cpu_seconds_total", "CPU time", "counter", cpu)
    if status.get("drift"):
        lines += _drift(status["drift"])
    if status.get("canary"):
        lines += _canary(status["canary"])
    return "\n".join(lines) + "\n"


def _drift(drift: Mapping[str, Mapping[str, Any]]) -> list[str]:
    effects = [(f'{{model="{_escaped(name)}",column="{_escaped(column)}"}}', effect)
               for name, one in drift.items() for column, effect in one["effects"].items()]  # fmt: skip
    words = "Largest move of a share of this column in the last period, against the training data"

    def each(key: str) -> list[tuple[str, float]]:
        return [(f'{{model="{_escaped(name)}"}}', one[key]) for name, one in drift.items()]

    return [
        *_family("flatout_drift_effect", words, "gauge", effects),
        *_family("flatout_drift_evidence", "E-value against rows that are within what is allowed", "gauge", each("evidence")),
        *_family("flatout_drift_alarms_total", "Periods that ended with an alarm", "counter", each("alarms")),
    ]


def _canary(canary: Mapping[str, Any]) -> list[str]:
    model = _escaped(canary["model"])
    counts = [(f'{{model="{model}",arm="{arm}",outcome="{outcome}"}}', count)
              for arm, all_of_it in canary["requests"].items()
              for outcome, count in (("failed", canary["failed"][arm]),
                                     ("answered", all_of_it - canary["failed"][arm]))]  # fmt: skip
    labelled = [(f'{{model="{model}",arm="{arm}"}}', count) for arm, count in canary["labelled"].items()]
    words = "E-value against the canary; it is rolled back where flatout_canary_evidence_needed is reached"
    found = [
        *_family("flatout_canary", "1, with the state of the canary", "gauge",
                 [(f'{{model="{model}",status="{canary["status"]}"}}', 1)]),
        *_family("flatout_canary_share", "Of the requests", "gauge", [(f'{{model="{model}"}}', canary["share"])]),
        *_family("flatout_canary_requests_total", "Requests while the canary was judged", "counter", counts),
        *_family("flatout_canary_labels_total", "Answers with a label", "counter", labelled),
        *_family("flatout_canary_evidence", words, "gauge", [(f'{{model="{model}"}}', canary["evidence"]["against"])]),
        *_family("flatout_canary_evidence_needed", "See flatout_canary_evidence", "gauge",
                 [(f'{{model="{model}"}}', canary["evidence"]["needed"])]),
    ]  # fmt: skip
    shadowed = canary.get("shadowed")
    if shadowed:
        answers = [(f'{{model="{model}",compared="{name}"}}', shadowed[key]) for name, key in
                   (("same", "same"), ("different", "different"), ("not_copied", "not_copied"))]  # fmt: skip
        found += _family("flatout_shadow_answers_total", "Copies of requests for the shadow", "counter", answers)
    return found


def _triton(counters: SharedCounters, name: str, place: int, status: Mapping[str, Any]) -> list[float]:
    summed, said = counters.summed(place), status.get("models", {}).get(name, {})
    answered = summed.count("answered")
    return [
        answered,
        summed.requests - answered,
        summed.rows,
        said.get("batches", 0),
        _US * summed.sum_s("total"),
        _US * summed.sum_s("queue"),
        _US * (summed.sum_s("decode") + summed.sum_s("copy")),
        _US * summed.sum_s("compute"),
        _US * summed.sum_s("encode"),
    ]


def _requests(counters: SharedCounters, versions: Mapping[str, tuple[str, int]]) -> list[str]:
    counts = []
    for name, (_, place) in (*versions.items(), ("", ("", 0))):
        summed = counters.summed(place)
        counts += [(f'{{model="{_escaped(name)}",outcome="{code}"}}', summed.count(code)) for code in CODES]
    words = "Requests: answered, refused (4xx), late (503), failed (other 5xx); without a model: all other paths"
    return _family("flatout_requests_total", words, "counter", counts)


def _parts(counters: SharedCounters, versions: Mapping[str, tuple[str, int]]) -> list[str]:
    lines = ["# HELP flatout_request_seconds The parts of a request's time", "# TYPE flatout_request_seconds histogram"]
    for name, (_, place) in versions.items():
        summed = counters.summed(place)
        for part in PARTS:
            labels = f'model="{_escaped(name)}",part="{part}"'
            ends, counts = summed.histogram(part)
            reached = counts.cumsum()
            for place_of_end in range(_HISTOGRAM_STEP - 1, len(ends), _HISTOGRAM_STEP):
                lines.append(
                    f'flatout_request_seconds_bucket{{{labels},le="{ends[place_of_end]:.6g}"}} {reached[place_of_end]}'
                )
            lines.append(f'flatout_request_seconds_bucket{{{labels},le="+Inf"}} {reached[-1]}')
            lines.append(f"flatout_request_seconds_sum{{{labels}}} {summed.sum_s(part):.9g}")
            lines.append(f"flatout_request_seconds_count{{{labels}}} {reached[-1]}")
    return lines


def _family(name: str, help_text: str, kind: str, values: Iterable[tuple[str, float]]) -> list[str]:
    return [
        f"# HELP {name} {help_text}",
        f"# TYPE {name} {kind}",
        *(f"{name}{labels} {value:.15g}" for labels, value in values),
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
