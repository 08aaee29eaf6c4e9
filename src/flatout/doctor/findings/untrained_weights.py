"""Weights that get a gradient but are in no optimizer: forgotten, or computed for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_count, show_seconds
from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding

_NODE = "autograd::engine::evaluate_function: "


def look(case: Case) -> Iterator[Finding]:
    seen = case.seen.look
    if seen is None or not seen.untrained:
        return
    hidden = [elements for elements, registered in seen.untrained.values() if not registered]
    made = case.optimizer.made if case.optimizer is not None else ""
    if hidden or seen.stale:
        kept = hidden or [elements for elements, _ in seen.untrained.values()]
        yield Finding(
            "untrained_weights",
            case.step_ms,
            made,
            "Weights get gradients but are in no optimizer, so they are never trained",
            f"{len(kept)} weight tensors ({show_count(sum(kept))} weights)"
            + (
                " belong to no module that the script calls: modules in a Python list or dict are not registered"
                if hidden
                else "; the optimizer has others that the model does not have (any more)"
            ),
            "put modules into nn.ModuleList or nn.ModuleDict" if hidden else "create the optimizer after the model is complete",
            gain=1.0,
            about=WRONG,
        )
        return
    spent_ms = _spent_ms(case)
    weights = sum(elements for elements, _ in seen.untrained.values())
    yield Finding(
        "needless_gradients",
        spent_ms,
        made,
        "Gradients are computed for weights that no optimizer updates",
        f"{len(seen.untrained)} weight tensors ({show_count(weights)} weights) are in no optimizer; "
        f"their part of the backward pass takes {show_seconds(spent_ms / 1e3)} per step",
        "run that part of the model under torch.no_grad(), or call requires_grad_(False) on it before training",
        short="no needless gradients",
        estimate=case.on_device,
    )


def _spent_ms(case: Case) -> float:
    """Time of the nodes that lead to no trained weight. Nodes of one kind are taken to be equally long."""
    assert case.seen.look is not None
    spent: dict[str, int] = {}
    for span in (*case.trace.host, *case.trace.helpers):
        if span.name.startswith(_NODE):
            name = span.name.removeprefix(_NODE)
            spent[name] = spent.get(name, 0) + span.end - span.start
    whole = sum(spent.values())
    needless = sum(spent.get(name, 0) * few / every for name, (few, every) in case.seen.look.nodes.items() if every)
    return case.ms(needless) * _slowed(case) if whole else 0.0


def _slowed(case: Case) -> float:
    """A step without the profiler relative to one with it."""
    looked_ms = case.ms(case.trace.end - case.trace.begin)
    return min(case.train_ms / looked_ms, 1.0) if looked_ms else 1.0
