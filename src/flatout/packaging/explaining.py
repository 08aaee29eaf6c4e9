"""`explain` of a package: the runtimes measured on this machine by batch size, the one that is taken, and its share of the
machine's ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_rate, show_seconds
from flatout.machine.ceilings import Ceilings
from flatout.packaging.onnx_program import OnnxProgram
from flatout.packaging.package import Package
from flatout.packaging.runtimes.choice import Measured, fastest

_KIND_OF_FLOPS = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}


def package_doc(package: Package, measured: Sequence[Measured], device: torch.device, ceilings: Ceilings | None) -> Doc:
    sizes = sorted({point.batch for one in measured for point in one.curve})
    flops = flops_per_row(package, device)
    peak = _peak(package, device, ceilings)
    rows = [_row(package, measured, size, flops, peak) for size in sizes]
    left_out = [one for one in measured if one.why_not is not None]
    card = package.card
    name = f"{package.path} from {card['run']['name']}"
    shown: list[Node] = [
        Fields({"package": str(package.path), "hash": package.folder.hash, "run": card["run"]["name"], "device": str(device)}),
        TextLine(f"{name} on {device.type}", strong=True),
        TextLine(_check(package, measured)),
        TextLine(),
        Table("batches", _columns(measured), rows),
    ]
    if left_out:
        shown += [TextLine(), *(TextLine(f"not used: {one.name} ({one.why_not})") for one in left_out)]
    shown.append(Fields({"runtimes": [one.to_json() for one in measured]}))
    return Doc(tuple(shown))


def _columns(measured: Sequence[Measured]) -> list[TableColumn]:
    used = [one.name for one in measured if one.curve]
    return [
        TableColumn("batch", "batch", right=True),
        *(TableColumn(name, name, right=True) for name in used),
        TableColumn("taken", "taken"),
        TableColumn("rate", "rows", right=True),
        TableColumn("ceiling_share", "of ceiling", right=True),
    ]


def _row(package: Package, measured: Sequence[Measured], size: int, flops: float | None, peak: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"batch": size}
    for one in measured:
        seconds = next((point.median_s for point in one.curve if point.batch == size), None)
        row[one.name] = Cell(seconds, "" if seconds is None else show_seconds(seconds))
    best = fastest(measured, size)
    seconds = best.seconds(size)
    assert seconds is not None
    share = None if flops is None or peak is None else flops * size / seconds / peak
    row["taken"] = best.name
    row["rate"] = Cell(size / seconds, show_rate(size / seconds, "rows"))
    row["ceiling_share"] = Cell(share, "" if share is None else f"{share:.1%}")
    return row


def _check(package: Package, measured: Sequence[Measured]) -> str:
    agreeing = [one for one in measured if one.parity is not None and one.parity.holds]
    worst = max((one.parity.worst for one in agreeing if one.parity is not None), default=0.0)
    samples = package.card["samples"]
    return (
        f"{len(agreeing)} runtimes give the run's outputs on {samples['rows']} samples ({samples['origin']}); "
        f"largest difference {worst:.1g}"
    )


def flops_per_row(package: Package, device: torch.device) -> float | None:
    """Of matrix products and convolutions; None if the program has none."""
    if isinstance(package.program, OnnxProgram):
        return None
    rows = {name: column[:2].to(device) for name, column in package.samples.rows.items()}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        package.program.module(package.weights, device)(*(rows[port.name] for port in package.program.inputs))
    total = counter.get_total_flops()
    return total / 2 if total else None


def _peak(package: Package, device: torch.device, ceilings: Ceilings | None) -> float | None:
    if ceilings is None:
        return None
    kind = _KIND_OF_FLOPS[package.card["precision"] if device.type == "cuda" else "fp32"]
    rate = ceilings.matmul_flops.get(kind)
    return None if rate is None else float(rate.value)
