"""`flatout probe`: facts about this machine, its measured speed, and problems of its setup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from flatout.base.tree import Doc, Fields, TextLine
from flatout.machine.advice import Advice, advise
from flatout.machine.cache import CeilingsCache
from flatout.machine.ceilings import Ceilings, measure_ceilings
from flatout.machine.device import device_name
from flatout.machine.facts import Facts, fingerprint, read_facts
from flatout.machine.gains import GainComparison, with_gains
from flatout.machine.nvml import GpuFacts, open_gpus
from flatout.machine.operators import with_operators
from flatout.machine.others_work import OthersWork, others_now
from flatout.machine.rates import tf32_products
from flatout.machine.table import advice_lines, ceilings_table, machine_table
from flatout.measure.clock import synchronize
from flatout.measure.counts import Operation

_OPERATORS_S, _GAINS_S = 6.0, 2.0


@dataclass(frozen=True)
class Probe:
    facts: Facts
    ceilings: Ceilings
    advice: tuple[Advice, ...]
    cached: bool
    notes: tuple[str, ...] = ()  # problems on the way


def probe(
    device: torch.device,
    cache_dir: Path | None,
    quick: bool = False,
    fresh: bool = False,
    operations: Callable[[Ceilings], Iterable[Operation]] = lambda ceilings: (),
    comparisons: Callable[[Ceilings], Iterable[GainComparison]] = lambda ceilings: (),
    look_at_others: bool = False,
) -> Probe:
    """Facts are read each time. Ceilings are measured once, then read from the cache, unless `fresh`.

    `operations`, called once the ceilings are known, are timed for a few seconds, except those already in the cache; then
    `comparisons` are timed in the same way. `look_at_others`: say if other processes use the cores, which takes 0.2 s.
    """
    facts, others = read_facts(), OthersWork()
    cache = CeilingsCache(cache_dir)
    key = fingerprint(facts)
    kept = None if fresh else cache.load(key, device, quick)
    if kept is not None:
        known = kept.ceilings
        facts = replace(facts, gpus=kept.under_load(facts.gpus))
    else:
        known = measure_ceilings(device, quick, folder=cache.made_folder())
        facts = replace(facts, gpus=_gpus_under_load(device))
    if look_at_others:
        used = others_now() if kept is not None else others.use()
        facts = replace(facts, others_cores=None if used is None else round(used.others, 2))
    ceilings = with_operators(known, device, operations(known), _OPERATORS_S)
    with tf32_products(False, device):
        ceilings = with_gains(ceilings, device, comparisons(ceilings), _GAINS_S)
    if kept is None or ceilings is not known:
        cache.save(key, device, quick if kept is None else kept.quick, ceilings, facts.gpus)
    return Probe(facts, ceilings, tuple(advise(facts, ceilings)), kept is not None, tuple(cache.notes))


def keep_gains(device: torch.device, cache_dir: Path, gains: Mapping[str, float | None]) -> None:
    """Add gains measured elsewhere to the stored ceilings."""
    cache, facts = CeilingsCache(cache_dir), read_facts()
    key = fingerprint(facts)
    if gains and (kept := cache.load(key, device, quick=True)) is not None:
        ceilings = replace(kept.ceilings, gains={**kept.ceilings.gains, **gains})
        cache.save(key, device, kept.quick, ceilings, kept.under_load(facts.gpus))


def doc(probe: Probe) -> Doc:
    facts, ceilings = probe.facts, probe.ceilings
    when = "earlier (cached)" if probe.cached else "just now"
    return Doc(
        (
            Fields({"device": ceilings.device, "cached": probe.cached, "notes": list(probe.notes)}),
            Fields({"facts": facts.to_dict(), "advice": [asdict(advice) for advice in probe.advice]}),
            TextLine(f"This machine trains on {device_name(torch.device(ceilings.device))} ({ceilings.device})", strong=True),
            TextLine(),
            machine_table(facts),
            TextLine(),
            ceilings_table(ceilings),
            TextLine(f"(median of n repeats, measured {when}; low to high: 95% interval, or the range if n < 6)"),
            *(TextLine(f"({note})") for note in probe.notes),
            TextLine(),
            *advice_lines(probe.advice),
        )
    )


def _gpus_under_load(device: torch.device) -> tuple[GpuFacts, ...]:
    """GPU facts while the device copies and computes: idle links and clocks slow down to save power."""
    gpus = open_gpus()
    if device.type == "cpu" or gpus.why_absent:
        return gpus.facts()
    here = torch.empty(2**26)
    there = torch.empty_like(here, device=device)
    factor = torch.randn(4096, 4096, device=device, generator=torch.Generator(device).manual_seed(0))
    for _ in range(10):
        there.copy_(here)
    for _ in range(50):  # queued, so the device is still busy when NVML is read
        torch.mm(factor, factor)
    facts = gpus.facts()
    synchronize(device)
    return facts
