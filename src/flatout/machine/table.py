"""Parts of the probe's screen: the machine in a few lines, a row for each ceiling, the advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from flatout.base.tree import Cell, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_flops, show_seconds
from flatout.machine.advice import Advice
from flatout.machine.ceilings import RATES, Ceilings, MeasuredRate
from flatout.machine.facts import CpuFacts, Facts
from flatout.machine.nvml import GpuFacts
from flatout.machine.rates import MATMUL_DTYPES

Show = Callable[[float], str]

_WORDS = {
    "copy_bytes_per_s": "memory copy (read + write)",
    "host_to_device_pinned_bytes_per_s": "host to device (pinned)",
    "host_to_device_pageable_bytes_per_s": "host to device (pageable)",
    "device_to_host_bytes_per_s": "device to host (pinned)",
    "peer_bytes_per_s": "device to device",
    "network_bytes_per_s": "network, per process",
    "launch_s": "launch of a small operator",
    "disk_read_bytes_per_s": "disk read",
    "operator_s": "overhead of an operator in a step",
    "kernel_s": "small kernel in a CUDA graph",
    "idle_w": "power while idle",
}
_COLUMNS = (
    TableColumn("name", "", shown=False),
    TableColumn("words", "ceiling"),
    TableColumn("value", "measured", right=True),
    TableColumn("low", "low", right=True),
    TableColumn("high", "high", right=True),
    TableColumn("n", "n", right=True),
    TableColumn("note", ""),
)


def machine_table(facts: Facts) -> Table:
    memory = f"{show_bytes(facts.memory_usable_bytes)}, {show_bytes(facts.memory_available_bytes)} free"
    shm = "" if facts.shm_bytes is None else f" · /dev/shm {show_bytes(facts.shm_bytes)}"
    versions = [f"torch {facts.torch}", f"Python {facts.python}", facts.platform]
    if facts.driver is not None:
        versions.insert(1, f"driver {facts.driver}")
    rows = [
        ("processor", _cpu_words(facts.cpu, facts.torch_threads)),
        ("memory", memory + shm),
        *(("GPU", _gpu_words(gpu)) for gpu in facts.gpus),
        *([] if facts.gpus else [("GPU", f"none: {facts.why_no_gpus}" if facts.why_no_gpus else "none")]),
        ("software", " · ".join(versions)),
    ]
    columns = (TableColumn("what", ""), TableColumn("words", ""))
    return Table("machine", columns, [{"what": what, "words": words} for what, words in rows], in_json=False)


def ceilings_table(ceilings: Ceilings) -> Table:
    matmul = ceilings.matmul_flops
    products = [_row(f"matmul {name}", f"matmul {name}", matmul.get(name), show_flops, ceilings) for name in MATMUL_DTYPES]
    others = [_row(name, _WORDS[name], getattr(ceilings, name), _shown_as(name), ceilings) for name in RATES]
    return Table("ceilings", _COLUMNS, [*products, *others])


def advice_lines(advice: Sequence[Advice]) -> Iterator[TextLine]:
    if not advice:
        yield TextLine("No problems found on this machine.")
        return
    yield TextLine(
        "1 problem on this machine:" if len(advice) == 1 else f"{len(advice)} problems on this machine:", strong=True
    )
    for one in advice:
        yield TextLine()
        yield TextLine(f"  {one.what}")
        yield TextLine(f"    cost    {one.cost}")
        yield TextLine(f"    remedy  {one.remedy}")


def _row(name: str, words: str, measured: MeasuredRate | None, show: Show, ceilings: Ceilings) -> dict[str, object]:
    if measured is None:
        why = ceilings.unavailable.get(name, "")
        return {"name": name, "words": words, "value": Cell(None, "unavailable"), "note": why}
    low, high = Cell(measured.low, show(measured.low)), Cell(measured.high, show(measured.high))
    value = Cell(measured.value, show(measured.value))
    return {"name": name, "words": words, "value": value, "low": low, "high": high, "n": measured.n, "note": measured.note}


def _shown_as(name: str) -> Show:
    if name.endswith("_w"):
        return lambda value: f"{value:.0f} W"
    return show_seconds if name.endswith("_s") and not name.endswith("_per_s") else lambda value: f"{show_bytes(value)}/s"


def _cpu_words(cpu: CpuFacts, threads: int) -> str:
    usable = f"{cpu.usable_cores} of " if cpu.usable_cores < cpu.logical_cores else ""
    return f"{cpu.model} · {usable}{cpu.logical_cores} cores, torch uses {threads} thread{'' if threads == 1 else 's'}"


def _gpu_words(gpu: GpuFacts) -> str:
    words = [gpu.name, gpu.device or "not usable by torch"]
    if gpu.memory_bytes is not None:
        words.append(show_bytes(gpu.memory_bytes))
    if gpu.pcie_generation is not None and gpu.pcie_width is not None:
        words.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}")
    if gpu.power_limit_w is not None:
        words.append(f"{gpu.power_limit_w:.0f} W")
    if gpu.clock_mhz is not None:
        words.append(f"{gpu.clock_mhz} MHz")
    return " · ".join(words)
