"""One deployment from its first request to its verdict: stages by evidence, labels, the receipt, and its state on disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from flatout.base.errors import UsageError
from flatout.measure.receipt import KEPT, REJECTED, Entry, Receipt
from flatout.serving.canary import tally
from flatout.serving.canary.answer_ids import AnswerIds
from flatout.serving.canary.comparable import AnswerKind
from flatout.serving.canary.judge import CanaryJudge
from flatout.serving.canary.labels import CanaryLabels, LabelAnswer
from flatout.serving.canary.limits import CanaryLimits
from flatout.serving.canary.options import CanaryOptions
from flatout.serving.canary.rollout_view import UNDECIDED, shown_figure
from flatout.serving.canary.tally import Array

_FIRST_PATIENCE_S, _LEAST_PATIENCE_S, _TIMES_P99 = 5.0, 1.0, 10.0
_LATENCIES_KNOWN = 4  # figures
_MOST_ENDS = 2  # of the canary's process


class RolloutStatus(StrEnum):
    RUNNING = "running"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"


class Rollout:
    """`stable` and `canary` are the hashes of both packages; another pair is another deployment."""

    def __init__(self, options: CanaryOptions, stable: str, canary: str, kind: AnswerKind, say: Callable[[str], None]) -> None:
        self.options, self._kind, self._say = options, kind, say
        self._identity = {"model": options.model, "stable": stable, "canary": canary, "shadow": options.shadow}
        self.judge = CanaryJudge(options.limits, kind.values, kind.edges is not None)
        self.status, self.stage, self.reason = RolloutStatus.RUNNING, 0, ""
        self.secret = os.urandom(32)
        self._read: Array = tally.empty((2,))  # what the counters said at the last look
        self._sums: Array = tally.empty((2,))  # of all, over restarts
        self._began_s, self._ended_s, self._saved_s = time.time(), 0.0, 0.0
        self._is_changed = False
        self._path = options.folder / f"canary-{options.model}.json"
        self._needs: dict[int, dict[str, Any]] = {}  # by stage, as it was stated first
        self._is_known = self._load()
        self._labels = CanaryLabels(kind, AnswerIds(self.secret), self._path.with_suffix(".labels"), known=self._is_known)

    # ---- verdicts ----

    @property
    def is_over(self) -> bool:
        return self.status is not RolloutStatus.RUNNING

    @property
    def share(self) -> float:
        if self.is_over:
            return 1.0 if self.status is RolloutStatus.PROMOTED else 0.0
        return 1.0 if self.options.shadow else self.options.limits.stages[self.stage]

    def look(self, counted: Array, ends: int = 0) -> bool:
        """What all fronts have counted since the server started. Whether something changed: the stage, or a verdict."""
        new = counted - self._read + self._labels.since()
        self._read = counted
        if self.is_over:
            return False
        self._sums = self._sums + new
        self._is_changed |= bool(new.any())
        self.judge.look(new[0], new[1])
        if self.options.shadow:
            return False
        if ends >= _MOST_ENDS:
            self._conclude(RolloutStatus.ROLLED_BACK, f"its process ended {ends} times")
        elif self.judge.rolls_back():
            self._conclude(RolloutStatus.ROLLED_BACK, self.judge.worst())
        elif self.judge.passes(self.stage):
            if self.stage + 1 == len(self.options.limits.stages):
                self._conclude(RolloutStatus.PROMOTED, "no figure is worse than allowed")
            else:
                self.stage += 1
                self._say(f"canary of {self.options.model}: nothing bad is seen; it gets {self.share:.4g} of the requests")
        else:
            return False
        self.save()
        return True

    def fail(self, reason: str) -> None:
        self._conclude(RolloutStatus.ROLLED_BACK, reason)
        self.save()

    def decide(self, status: RolloutStatus) -> None:
        """By a person."""
        if self.status is status:
            raise UsageError(f"the canary of {self.options.model} is {status} already")
        self._conclude(status, "asked for")
        self.save()

    def _conclude(self, status: RolloutStatus, reason: str) -> None:
        self.status, self.reason, self._ended_s = status, reason, time.time()
        self._say(f"canary of {self.options.model}: {status} after {self._asked()[1]:,} requests: {reason}")

    @property
    def ended_s(self) -> float:
        """When the verdict was, in seconds since 1970."""
        return self._ended_s

    @property
    def edges(self) -> tuple[float, ...] | None:
        return self._kind.edges

    def patience_s(self) -> float:
        """How long the canary has for a request before the stable version is asked."""
        found = next(row["stable"] for row in self.judge.figures() if row["figure"].endswith("p99"))
        return _FIRST_PATIENCE_S if found is None else max(_LEAST_PATIENCE_S, _TIMES_P99 * found)

    def label(self, name: Any, label: Any) -> LabelAnswer:
        """One label, by the id that came with the answer."""
        return self._labels.take(name, label, f"the canary was {self.status}" if self.is_over else "")

    # ---- what is shown ----

    def _asked(self) -> tuple[int, int]:
        stable, canary = (int(arm[tally.REQUESTS]) for arm in self._sums)
        return stable, canary

    def summary(self) -> dict[str, Any]:
        stable, canary = self._asked()
        limits = self.options.limits
        found: dict[str, Any] = {
            "model": self.options.model,
            "status": str(self.status),
            "shadow": self.options.shadow,
            "share": self.share,
            "stage": self.stage,
            "stages": list(limits.stages),
            "reason": self.reason,
            "requests": {"stable": stable, "canary": canary},
            "failed": {name: int(arm[tally.FAILED]) for name, arm in zip(("stable", "canary"), self._sums, strict=True)},
            "labelled": {name: int(arm[tally.LABELLED]) for name, arm in zip(("stable", "canary"), self._sums, strict=True)},
            "evidence": {"against": float(np.exp(min(700.0, float(self.judge.highest)))), "needed": 1 / limits.roll_back_error},
            "figures": self.judge.figures(),
        }
        if self.options.shadow:
            compared, different, lost = (int(self._sums[1][one]) for one in (tally.COMPARED, tally.DIFFERENT, tally.NOT_COPIED))
            found["shadowed"] = {"same": compared - different, "different": different, "not_copied": lost}
        elif not self.is_over:
            found["not_enough_evidence_yet"] = self.judge.missing(self.stage)
            found["needs"] = self._stated()
        return found

    def _stated(self) -> dict[str, Any]:
        """Requests of the canary that a verdict takes, by figure: stated once a stage, before its evidence is there."""
        if self.stage not in self._needs:
            found = self.judge.needs(self.stage)
            if len(found) < _LATENCIES_KNOWN:
                return {}
            self._needs[self.stage] = {name: {word: one.most for word, one in some.items()} for name, some in found.items()}
            caught, passed = (max(one[word] or 0 for one in self._needs[self.stage].values() if word in one)
                              for word in ("caught", "passed"))  # fmt: skip
            self._say(
                f"canary of {self.options.model} at {100 * self.share:g}%: with 97% a bad version is rolled back within "
                f"{caught:,} of its requests, and an equal one passes within {passed:,}"
            )
        return self._needs[self.stage]

    def receipt(self) -> Receipt:
        """As long as it is running, the figures so far."""
        identity, kept = self._identity, self.status is RolloutStatus.PROMOTED
        verdict = {RolloutStatus.PROMOTED: KEPT, RolloutStatus.ROLLED_BACK: REJECTED}.get(self.status, UNDECIDED)
        entries = []
        for row in self.judge.figures():
            low, high = row.get("canary_interval", (None, None))
            words = " and ".join(f"{name} {shown_figure(row['figure'], row[name])}" for name in ("stable", "canary"))
            entries.append(
                Entry(row["figure"], row["canary"], row["stable"], verdict, words, low=low, high=high, n=row["canary_n"])
            )
        notes = [
            f"requests: {self._asked()[0]:,} by the stable version, {self._asked()[1]:,} by the {self._other}",
            *self._notes(),
        ]
        settings = {"package": identity["canary"] if kept else identity["stable"]}
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._ended_s or time.time()))
        took_s = (self._ended_s or time.time()) - self._began_s
        return Receipt({"package": identity["stable"]}, settings, tuple(entries), stopped=self.reason, notes=tuple(notes),
                       took_s=took_s, at=at)  # fmt: skip

    @property
    def _other(self) -> str:
        return "shadow" if self.options.shadow else "canary"

    def _notes(self) -> list[str]:
        if self.options.shadow:
            compared, different, lost = (int(self._sums[1][one]) for one in (tally.COMPARED, tally.DIFFERENT, tally.NOT_COPIED))
            return [f"answers: {compared - different:,} are the same, {different:,} differ; {lost:,} requests were not copied"]
        limits, missing = self.options.limits, self.judge.missing(self.stage)
        found = [] if self.is_over else [f"not enough evidence yet: {', '.join(missing)}"]
        return [
            *found,
            f"a version that is fine is rolled back with a probability of at most {limits.roll_back_error:g}; "
            f"a bad one is promoted with one of at most {limits.promote_error:g}; valid however often it was looked at",
        ]

    # ---- on disk ----

    def save(self, least_s: float = 0.0) -> None:
        """If something changed; at most once in `least_s`. A server that is killed goes on from here."""
        now_s = time.monotonic()
        if least_s and (not self._is_changed or now_s - self._saved_s < least_s):
            return
        self._saved_s, self._is_changed = now_s, False
        written = {
            "identity": self._identity,
            "limits": self.options.limits.to_json(),
            "status": str(self.status),
            "stage": self.stage,
            "reason": self.reason,
            "secret": self.secret.hex(),
            "began": self._began_s,
            "ended": self._ended_s,
            "sums": self._sums.tolist(),
            "judge": self.judge.to_json(),
            "receipt": self.receipt().to_dict(),
        }
        self.options.folder.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_suffix(".unfinished")
        aside.write_text(json.dumps(written))
        aside.chmod(0o600)  # it has the secret of the ids
        aside.replace(self._path)

    def _load(self) -> bool:
        """Whether there is a state of this deployment."""
        try:
            written: Mapping[str, Any] = json.loads(self._path.read_text())
            limits = CanaryLimits.from_json(written["limits"])
            if written["identity"] != self._identity or limits != self.options.limits:
                return False
            self.judge.restore(written["judge"])
            self.status, self.stage, self.reason = (
                RolloutStatus(written["status"]),
                int(written["stage"]),
                str(written["reason"]),
            )
            self.secret = bytes.fromhex(written["secret"])
            self._began_s, self._ended_s = float(written["began"]), float(written["ended"])
            self._sums = np.array(written["sums"], np.int64).reshape(2, tally.FIELDS)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self._path} is no state of a canary ({error}); move it away to begin anew") from error
        self._say(f"canary of {self.options.model}: {self.status}, as before, after {self._asked()[1]:,} requests")
        return True
