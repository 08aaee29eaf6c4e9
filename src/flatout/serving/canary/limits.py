"""How much worse a new version may be, how much worse is bad, and how sure a verdict has to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flatout.base.errors import UsageError

STAGES = (0.01, 0.05, 0.25)


@dataclass(frozen=True)
class CanaryLimits:
    """Of each figure two values: up to `allowed` more than the stable version's is fine, `bad` more must not be promoted.

    Errors, wrong answers and shifts of predictions are differences of shares; latencies (and sizes of errors of numbers) are
    factors, and a latency that is no more than `latency_slack_s` longer is fine, three times that is bad. Early stages rule out
    only what is several times `bad`: few requests are at risk there.
    """

    stages: tuple[float, ...] = STAGES
    errors_allowed: float = 0.001
    errors_bad: float = 0.005
    latency_allowed: float = 1.09
    latency_bad: float = 1.3
    latency_slack_s: float = 0.001  # what two processes on the same cores differ by
    wrong_allowed: float = 0.005
    wrong_bad: float = 0.02
    shift_allowed: float = 0.1
    shift_bad: float = 0.2
    roll_back_error: float = 0.05  # probability that a version that is fine is rolled back
    promote_error: float = 0.05  # probability that a bad version is promoted
    needs_labels: bool = False  # whether a promotion also needs the metric

    def __post_init__(self) -> None:
        stages = self.stages
        if not stages or any(not 0 < one < 1 for one in stages) or list(stages) != sorted(set(stages)):
            raise UsageError(f"the shares of a canary grow and are between 0% and 100%, got {shown_shares(stages)}")

    @property
    def latency_slack_bad_s(self) -> float:
        return 3 * self.latency_slack_s

    @property
    def times_bad(self) -> tuple[float, ...]:
        """By stage: what is ruled out there, in multiples of `bad`. 1 in the last."""
        return tuple(2.0 ** (len(self.stages) - 1 - place) for place in range(len(self.stages)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> CanaryLimits:
        return cls(**{**written, "stages": tuple(written["stages"])})


def shown_shares(shares: tuple[float, ...]) -> str:
    return ", ".join(f"{share:.4g}".rstrip() if share >= 1 else f"{100 * share:.4g}%" for share in shares)


def parse_shares(written: str) -> tuple[float, ...]:
    """As "5%" or "1%,5%,25%"."""
    try:
        shares = tuple(float(one.strip().removesuffix("%")) / (100 if "%" in one else 1) for one in written.split(","))
    except ValueError:
        raise UsageError(f"a share is written as 5%, several as 1%,5%,25%; got {written!r}") from None
    return CanaryLimits(stages=shares).stages
