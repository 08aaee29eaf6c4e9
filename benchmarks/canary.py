"""Of 1,000 good versions at most 5% are rolled back; a bad one is stopped within the stated n in 90%, sooner than by others.

Simulated deployments at a share of 5%. Half of the good versions equal the stable one, half are as much worse as allowed
(errors +0.1 points, latency x1.09, wrong answers +0.5 points). Bad: p99 +30% (only the slowest tenth is slower), errors
+0.5 points, accuracy -2 points. The other rules are a threshold for each interval that has to be crossed five times (Flagger,
Argo Rollouts), and a Mann-Whitney test on all requests so far at every look (Kayenta's test). Their thresholds are set so that
as many of the same good versions are rolled back as by ours.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from evidence import Bar, Report, options

from flatout.serving.canary import tally
from flatout.serving.canary.judge import CanaryJudge, quantile_step
from flatout.serving.canary.limits import CanaryLimits
from flatout.serving.canary.tally import Array

DEPLOYMENTS, SHARE, LOOK = 1000, 0.05, 200  # requests of the canary in each look
ERRORS, WRONG, SPREAD, MEDIAN_S = 0.005, 0.10, 0.5, 0.02
FAILURES = 5  # intervals
NORMAL = NormalDist()


@dataclass(frozen=True)
class Version:
    """Differences from the stable version. `tail` is the factor of p99, with the lower nine tenths unchanged."""

    name: str
    errors: float = 0.0
    factor: float = 1.0
    tail: float = 1.0
    wrong: float = 0.0
    figure: str = ""


GOOD = (Version("equal"), Version("as much worse as allowed", 0.001, 2 ** (2 / tally.STEPS), 1.0, 0.005))
BAD = (
    Version("p99 +30%", tail=1.3, figure="latency p99"),
    Version("errors +0.5 points", errors=0.005, figure="errors"),
    Version("accuracy -2 points", wrong=0.02, figure="wrong answers"),
)


def latencies(version: Version) -> Array:
    """The probability of every step."""
    ends = np.array([tally.step_end_s(step) for step in range(tally.LATENCIES)])
    quantiles = np.linspace(0.0005, 0.9995, 20_000)
    seconds = MEDIAN_S * np.exp(SPREAD * np.array([NORMAL.inv_cdf(one) for one in quantiles]))
    stretched = np.interp(quantiles, [0.9, 0.99], [1.0, version.tail])
    steps = np.searchsorted(ends, seconds * version.factor * stretched)
    return np.bincount(steps, minlength=tally.LATENCIES) / len(quantiles)


def drawn(version: Version, n: int, many: int, rng: np.random.Generator, timed: int | None = None) -> Array:
    """`timed`: of the n requests, those of the control."""
    found = tally.empty((many,))
    found[:, tally.REQUESTS] = found[:, tally.LABELLED] = n
    found[:, tally.FAILED] = rng.binomial(n, ERRORS + version.errors, many)
    found[:, tally.WRONG] = rng.binomial(n, WRONG + version.wrong, many)
    found[:, tally.SLOW] = rng.multinomial(n if timed is None else timed, latencies(version), many)
    return found


class Rules:
    """The highest values of the other rules' statistics so far, for thresholds that are set later, look by look."""

    def __init__(self, many: int) -> None:
        self._sums = [tally.empty((many,)), tally.empty((many,))]
        self.statistics: dict[str, list[Array]] = {"threshold": [], "Mann-Whitney": []}
        self._intervals: list[Array] = []

    def look(self, stable: Array, canary: Array) -> None:
        self._sums = [before + now for before, now in zip(self._sums, (stable, canary), strict=True)]
        self._intervals.append(interval_excess(stable, canary))
        crossed = np.sort(np.stack(self._intervals), axis=0)[::-1]  # the fifth highest has to be over the threshold
        fifth = crossed[FAILURES - 1] if len(crossed) >= FAILURES else np.full(crossed.shape[1:], -np.inf)
        self.statistics["threshold"].append(fifth)
        highest = mann_whitney(*self._sums)
        if self.statistics["Mann-Whitney"]:
            highest = np.maximum(highest, self.statistics["Mann-Whitney"][-1])
        self.statistics["Mann-Whitney"].append(highest)


def interval_excess(stable: Array, canary: Array) -> Array:
    """By deployment and figure, how much worse the canary was in one interval: errors, p99 as a factor, wrong answers."""
    errors, wrong = (share(canary, n, hits) - share(stable, n, hits) for n, hits in
                     ((tally.REQUESTS, tally.FAILED), (tally.LABELLED, tally.WRONG)))  # fmt: skip
    slow = [quantile_step(arm[:, tally.SLOW], 0.99) for arm in (stable, canary)]
    noise = np.random.default_rng(1).random(len(errors)) * 1e-6  # steps have ties
    return np.stack([errors, (slow[1] - slow[0]) + noise, wrong], axis=-1)


def share(arm: Array, n: int, hits: int) -> Array:
    return np.asarray(arm[:, hits] / np.maximum(arm[:, n], 1))


def mann_whitney(stable: Array, canary: Array) -> Array:
    """z by deployment and figure: that values of the canary are larger. Ties within steps are corrected for."""
    found = []
    for n, hits in ((tally.REQUESTS, tally.FAILED), (tally.LABELLED, tally.WRONG)):
        some = [np.stack([arm[:, n] - arm[:, hits], arm[:, hits]], axis=-1) for arm in (stable, canary)]
        found.append(rank_z(*some))
    found.insert(1, rank_z(stable[:, tally.SLOW], canary[:, tally.SLOW]))
    return np.stack(found, axis=-1)


def rank_z(stable: Array, canary: Array) -> Array:
    stable, canary = stable.astype(np.float64), canary.astype(np.float64)
    both = stable + canary
    below = np.cumsum(stable, -1) - stable
    u = (canary * (below + stable / 2)).sum(-1)
    n, m, total = stable.sum(-1), canary.sum(-1), both.sum(-1)
    ties = (both**3 - both).sum(-1) / (total * (total - 1))
    return np.asarray((u - n * m / 2) / np.sqrt(n * m / 12 * (total + 1 - ties)))


def deploy(version: Version, many: int, looks: int, seed: int) -> tuple[Array, dict[str, Array]]:
    """The look at which ours rolls back, by deployment (-1: never), and the other rules' statistics, look by look."""
    rng = np.random.default_rng(seed)
    judge, rules = CanaryJudge(CanaryLimits(stages=(SHARE,)), shape=(many,)), Rules(many)
    stopped = np.full(many, -1)
    others = round(LOOK * (1 - SHARE) / SHARE)
    judge.look(drawn(Version("before"), others, many, rng, LOOK), tally.empty((many,)))
    for look in range(looks):
        stable, canary = drawn(Version("stable"), others, many, rng, LOOK), drawn(version, LOOK, many, rng)
        judge.look(stable, canary)
        rules.look(stable, canary)
        stopped = np.where((stopped < 0) & judge.rolls_back(), look, stopped)
    return stopped, {name: np.stack(some) for name, some in rules.statistics.items()}


def stated() -> dict[str, int]:
    """Requests of the canary, before any was seen."""
    judge = CanaryJudge(CanaryLimits(stages=(SHARE,)))
    timed = round(100_000 * SHARE / (1 - SHARE))
    judge.look(drawn(Version("stable"), 100_000, 1, np.random.default_rng(0), timed)[0], tally.empty())
    found = judge.needs(0)
    return {one.figure: int(found[one.figure]["caught"].most or 0) for one in BAD}


def thresholds(statistics: list[Array], rate: float) -> Array:
    """One for each figure, equally strict, crossed by this share of good versions."""
    highest = np.concatenate([one.max(0) for one in statistics])
    ranks = np.argsort(np.argsort(highest, axis=0), axis=0).max(-1)  # of each deployment, in its most suspicious figure
    place = np.sort(ranks)[::-1][min(len(ranks) - 1, int(rate * len(ranks)))]
    return np.asarray(np.sort(highest, axis=0)[place])


def first_over(statistic: Array, limits: Array) -> Array:
    over = (statistic > limits).any(-1)
    return np.where(over.any(0), over.argmax(0), -1)


def requests(looks: Array, most: float) -> float:
    """The mean; a deployment that was never stopped counts with all its requests."""
    return float(np.where(looks < 0, most, (looks + 1) * LOOK / SHARE).mean())


def main() -> int:
    asked = options(__doc__, 1).parse_args()
    trial = asked.quick or asked.smoke
    many = 20 if trial else DEPLOYMENTS
    report = Report("canary", (__doc__ or "").strip().splitlines()[0], torch.device("cpu"))
    need = stated()
    longest = 20 if trial else -(-max(need.values()) // LOOK)
    report.conditions = {"deployments": many, "share": SHARE, "stated requests of the canary": need, "looks": longest}
    print("stated:", need, file=sys.stderr, flush=True)
    good = [deploy(one, many // 2, longest, 10 + place) for place, one in enumerate(GOOD)]
    false = [float((stopped >= 0).mean()) for stopped, _ in good]
    rate = sum(false) / 2
    for one, found in zip(GOOD, false, strict=True):
        report.arm(f"rolled back: {one.name}", "share", [found])
    report.bars.append(Bar("good versions that are rolled back", rate, 0.05, at_least=False))
    limits = {name: thresholds([statistics[name] for _, statistics in good], max(rate, 2 / many)) for name in good[0][1]}
    equal = {name: thresholds([good[0][1][name]], max(false[0], 2 / many)) for name in good[0][1]}
    most = longest * LOOK / SHARE
    for place, bad in enumerate(BAD):
        stopped, statistics = deploy(bad, many, longest, 20 + place)
        within = (stopped >= 0) & ((stopped + 1) * LOOK <= need[bad.figure])
        report.arm(f"{bad.name}: requests until ours stops it", "requests", [requests(stopped, most)])
        report.bars.append(Bar(f"{bad.name}: stopped within the stated n", float(within.mean()), 0.90))
        for name, statistic in statistics.items():
            theirs = requests(first_over(statistic, limits[name]), most)
            strict = requests(first_over(statistic, equal[name]), most)
            report.arm(f"{bad.name}: {name}", "requests", [theirs])
            report.arm(f"{bad.name}: {name}, set on equal versions only", "requests", [strict])
            report.bars.append(
                Bar(f"{bad.name}: requests, ours to {name}", requests(stopped, most) / theirs, 1.0, at_least=False)
            )
        print(bad.name, "done", file=sys.stderr, flush=True)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
