"""How often to save, and how long a stop may take, when nodes are lost from time to time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.fleet.spot import Cloud

SPOT_NODE_LOST_EVERY_S = 24 * 3600.0  # used if unknown; real values differ a hundredfold between node types and weeks
# Llama 3 on 16,384 GPUs had 419 unexpected interruptions in 54 days (arXiv 2407.21783, 3.3.4): one per 6,300 h and 8-GPU node
NODE_LOST_EVERY_S = 6300 * 3600.0
_SHORTEST_S, _LONGEST_S = 10.0, 3600.0  # between two saves; the same limits as in a run
_LEAVING_S = 15.0  # for the current step and the exit of the processes
_SHORTEST_GRACE_S = 30  # Kubernetes' default


def daly_interval_s(save_s: float, lost_every_s: float) -> float:
    """Time between the starts of two saves that minimises saving plus lost work (Daly 2006; its first term is Young's)."""
    if save_s >= 2 * lost_every_s:
        return lost_every_s
    ratio = save_s / (2 * lost_every_s)
    return math.sqrt(2 * save_s * lost_every_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9)


def expected_seconds(work_s: float, save_s: float, interval_s: float, lost_every_s: float, restart_s: float) -> float:
    """Daly's expected time of `work_s` of work with a save every `interval_s`, and failures that come at random. Infinite if
    no work is done between two saves."""
    useful_s = interval_s - save_s
    if useful_s <= 0:
        return math.inf
    exponent = min(interval_s / lost_every_s, 700.0)
    return lost_every_s * math.exp(min(restart_s / lost_every_s, 700.0)) * math.expm1(exponent) * work_s / useful_s


def grace_seconds(save_s: float) -> int:
    """Time for a save in progress, then the save that the signal asks for, then the exit; rounded up to 5 s."""
    return max(_SHORTEST_GRACE_S, 5 * math.ceil((2 * save_s + _LEAVING_S) / 5))


@dataclass(frozen=True)
class Interruptions:
    """`save_s` None: the duration of a save is unknown."""

    save_s: float | None
    save_why: str
    node_lost_every_s: float
    nodes: int
    cloud: Cloud | None = None
    asked_grace_s: float | None = None

    @property
    def lost_every_s(self) -> float:
        """The run stops whenever one of its nodes is lost."""
        return self.node_lost_every_s / self.nodes

    @property
    def interval_s(self) -> float | None:
        if self.save_s is None:
            return None
        return min(max(daly_interval_s(self.save_s, self.lost_every_s), _SHORTEST_S), _LONGEST_S)

    @property
    def lost_share(self) -> float | None:
        """Share of time lost: saves, as if training waited for each, and half an interval per lost node."""
        if self.save_s is None or self.interval_s is None:
            return None
        return min(1.0, self.save_s / self.interval_s + self.interval_s / (2 * self.lost_every_s))

    @property
    def grace_s(self) -> int:
        if self.asked_grace_s is not None:
            return math.ceil(self.asked_grace_s)
        return _SHORTEST_GRACE_S if self.save_s is None else grace_seconds(self.save_s)

    @property
    def notice_s(self) -> float:
        """The actual time between SIGTERM and the end: a lost spot node does not wait for the grace period."""
        return float(self.grace_s) if self.cloud is None else min(float(self.grace_s), self.cloud.notice_s)

    @property
    def save_fits(self) -> bool:
        return self.save_s is None or self.save_s <= self.notice_s
