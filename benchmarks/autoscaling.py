"""The autoscaler's rule against one on CPU use, on bursty arrivals at equal replicas: half of the misses.

A server that forms batches uses less CPU for each request the more there are, so its CPU use hardly grows with the load. The
use of cores below was measured with `flatout serve` on two cores, a digits MLP and random tensors in binary form, from
`flatout_cpu_seconds_total`; the cores were shared with other programs. The target of the rule on CPU use is chosen afterwards,
on the very arrivals, so that it takes as many replicas. The same is simulated with CPU use that is exactly
proportional to the load, which is the best case of a rule on CPU use.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import torch
from _cpu_rule import by_cpu, equal_cpu_target
from evidence import Bar, Report, options

from flatout.fleet.scaling import ReplicaRange, ScalingRule
from flatout.fleet.scaling_simulation import ReplicaModel, Simulated, Wanted, by_rule, simulate

HELD, GOAL_S, BATCH_S, START_S = 640.0, 0.05, 0.005, 35.0
# requests/s and cores used: 689, 293, 144 and 79 us of CPU for each request, in batches of 2.4, 4, 12 and 48 rows
MEASURED = ((0.0, 0.2), (392.0, 0.27), (1607.0, 0.47), (3224.0, 0.464), (6455.0, 0.51))
CORES = 2.0
REPLICAS = ReplicaRange(2, 60)
BAR, AIM = 0.5, 0.1


def poisson(chance: random.Random, mean: float) -> float:
    return max(0.0, round(chance.gauss(mean, math.sqrt(mean))))


def day(chance: random.Random, seconds: int) -> list[float]:
    """A day squeezed into some hours."""
    return [3000 * (1 + 0.8 * math.sin(2 * math.pi * second / seconds)) for second in range(seconds)]


def bursts(chance: random.Random, seconds: int) -> list[float]:
    """Quiet and busy times that change at random; busy is two to five times quiet."""
    means: list[float] = []
    mean = 1500.0
    while len(means) < seconds:
        mean = 1500.0 if mean > 1500 else 1500 * chance.uniform(2, 5)
        means += [mean] * round(chance.expovariate(1 / (900 if mean == 1500.0 else 300)) + 1)
    return means[:seconds]


def crowds(chance: random.Random, seconds: int) -> list[float]:
    """Steady, and now and then everybody comes at once: ten times as much within a minute, gone after ten."""
    means, starts = [1200.0] * seconds, [round(seconds * (one + chance.random()) / 4) for one in range(4)]
    for start in starts:
        for second in range(start, min(seconds, start + 900)):
            age = second - start
            means[second] += 10_800 * min(1.0, age / 60) * (1.0 if age < 600 else max(0.0, 1 - (age - 600) / 300))
    return means


def steps(chance: random.Random, seconds: int) -> list[float]:
    """The load doubles or halves at once every ten minutes."""
    means: list[float] = []
    level = 2000.0
    while len(means) < seconds:
        level = min(12000.0, max(1000.0, level * chance.choice([0.5, 2.0])))
        means += [level] * 600
    return means[:seconds]


PATTERNS: dict[str, Callable[[random.Random, int], list[float]]] = {
    "day": day,
    "bursts": bursts,
    "crowds": crowds,
    "steps": steps,
}


def measured_use(load: float) -> float:
    """The share of its cores that a replica uses at this share of the highest measured rate."""
    rate = load * MEASURED[-1][0]
    for (low, used), (high, more) in pairwise(MEASURED):
        if rate <= high:
            return (used + (more - used) * (rate - low) / (high - low)) / CORES
    return MEASURED[-1][1] / CORES


def compared(arrivals: list[float], model: ReplicaModel) -> tuple[Simulated, Simulated, float]:
    """The rule, the one on CPU use with as many replicas, and the target of that one."""
    rule = ScalingRule.of(HELD, GOAL_S, BATCH_S, REPLICAS)

    def on(wanted: Wanted) -> Simulated:
        return simulate(arrivals, wanted, REPLICAS, model)

    found = on(by_rule(rule))
    target = equal_cpu_target(on, REPLICAS, found.replicas)
    return found, on(by_cpu(target, REPLICAS)), target


def main() -> int:
    asked = options(__doc__, 3).parse_args()
    small = asked.quick or asked.smoke
    seconds, repeats = (1800, 1) if small else (2 * 3600, asked.repeats)
    report = Report("autoscaling", (__doc__ or "").partition("\n")[0], torch.device("cpu"))
    report.conditions |= {"held_per_s": HELD, "start_s": START_S, "seconds": seconds, "aim": AIM, "measured_use": MEASURED}
    uses: dict[str, Callable[[float], float]] = {"measured CPU use": measured_use, "proportional CPU use": lambda load: load}
    for use_name, use in uses.items():
        model = ReplicaModel(HELD, GOAL_S - BATCH_S, START_S, use)
        missed, others = 0.0, 0.0
        for name, pattern in PATTERNS.items():
            found = []
            for seed in range(repeats):
                chance = random.Random(f"{name} {seed}")
                found.append(compared([poisson(chance, one) for one in pattern(chance, seconds)], model))
            missed += sum(ours.missed for ours, _, _ in found)
            others += sum(other.missed for _, other, _ in found)
            report.arm(f"{name}, {use_name}: missed by the rule", "share", [ours.missed_share for ours, _, _ in found])
            report.arm(f"{name}, {use_name}: missed by CPU use", "share", [other.missed_share for _, other, _ in found])
            report.arm(f"{name}, {use_name}: its target", "share", [target for _, _, target in found])
            report.arm(
                f"{name}, {use_name}: its replicas", "ratio", [other.replicas / ours.replicas for ours, other, _ in found]
            )
        ratio = missed / others if others else float(missed > 0)
        report.conditions[f"missed by the rule over those by CPU use, {use_name}"] = ratio
        if use is measured_use:
            report.bars.append(Bar(f"requests missed, over those by CPU use, {use_name}", ratio, BAR, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
