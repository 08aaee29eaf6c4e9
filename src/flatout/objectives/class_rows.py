"""Logits of a CPU and the class of each row: the loss and what metrics read, from as few passes over the logits as can be.

torch's cross entropy takes 290 ns a row of 10 logits on one core, and argmax another 40: the loops for a row end before they
pay. Few classes are therefore laid out class by class, so that loops run over rows. Of many classes, the largest logit of
each row tells whether it is right, and the sum of exponentials its loss. What decides is compared exactly: rows with ties or
NaN are looked up among the logits themselves, as argmax does it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flatout.objectives.columns import Array, turned

FEW = 64  # classes
_SUMMED = 4096  # losses whose sum is good to 7 digits as they are: NumPy adds pairs of sums
_LEAST, _MOST = 1e-25, 1e30  # a sum of exponentials: beyond, some of them may be too small or too large for float32
_HALF = math.log(2) - 1e-3  # -log p: above it, two classes may be as likely


class Scratch:
    """Memory that one batch after the other is computed in: fresh memory of a megabyte costs more than its log_softmax. What
    is in it is lost with the next batch."""

    def __init__(self) -> None:
        self._places: dict[str, Tensor] = {}
        self._firsts: Array | None = None

    def firsts(self, rows: int, classes: int) -> Array:
        """The place of each row's first logit."""
        if self._firsts is None or len(self._firsts) != rows or self._firsts[-1] != (rows - 1) * classes:
            self._firsts = np.arange(0, rows * classes, classes)
        return self._firsts

    def like(self, logits: Tensor, use: str) -> Tensor:
        found = self._places.get(use)
        if found is None or found.shape != logits.shape or found.dtype != logits.dtype:
            found = self._places[use] = torch.empty(logits.shape, dtype=logits.dtype)
        return found


def class_rows(
    logits: Tensor, wanted: Tensor, ignore: int | Literal["negative"] | None = None, scratch: Scratch | None = None
) -> ClassRows | None:
    """For logits [N, classes] and classes [N]; rows of class `ignore` do not count. None where torch's own way is to be taken:
    on other devices, and for a class that does not exist."""
    if logits.device.type != "cpu" or logits.dim() != 2 or logits.shape[1] < 2 or not len(logits):
        return None
    if wanted.shape != logits.shape[:1] or wanted.is_floating_point() or not logits.is_floating_point():
        return None
    exact = logits.detach() if logits.dtype in (torch.float32, torch.float64) else logits.detach().float()
    given, classes = wanted.numpy().astype(np.int64, copy=False), logits.shape[1]
    may_count = ignore is None or ignore == "negative" or not 0 <= ignore < classes  # what exists, counts
    target, valid = given, None
    exist = bool(np.maximum.reduce(target.view(np.uint64)) < classes)  # a negative one is a large one here
    if ignore is not None and not (exist and may_count):
        valid = target >= 0 if ignore == "negative" else target != ignore
        target = np.where(valid, target, 0)
        exist = bool(target.max() < classes and target.min() >= 0)
    if not exist:
        return None
    return (_Few if classes <= FEW else _Many)(exact, given, target, valid, scratch or Scratch())


class ClassRows(ABC):
    """`wanted`: as given. `valid`: false for rows that do not count, which `target` has as any class; None if all count."""

    def __init__(self, logits: Tensor, wanted: Array, target: Array, valid: Array | None, scratch: Scratch) -> None:
        self.logits, self.wanted, self.target, self.valid, self.scratch = logits, wanted, target, valid, scratch
        self.rows, self.classes = logits.shape

    @property
    def loss(self) -> float:
        """The sum of -log p of the true classes."""
        losses = self.losses if self.valid is None else self.losses[self.valid]
        return float(losses.sum(dtype=np.float64 if len(losses) > _SUMMED else None))

    @property
    def weight(self) -> float:
        return float(self.rows if self.valid is None else np.count_nonzero(self.valid))

    @property
    def correct(self) -> int:
        return int(np.count_nonzero(self.hit if self.valid is None else self.hit & self.valid))

    @property
    @abstractmethod
    def losses(self) -> Array:
        """-log p of the true class of each row."""

    @property
    @abstractmethod
    def hit(self) -> Array:
        """Whether the predicted class is the true one."""

    @property
    @abstractmethod
    def predicted(self) -> Array:
        """The likeliest class, as argmax finds it: the first of equal ones, and NaN before all others."""

    @property
    @abstractmethod
    def surest(self) -> Array:
        """The probability of the predicted class."""

    @abstractmethod
    def log_odds(self) -> Tensor:
        """[N, classes], class by class in memory: numbers with the order of the probabilities p.

        log p up to 1/2; above it, -log(1 - p) - 2 log 2, from the sum of all other classes: p itself may be rounded to 1.
        """

    @abstractmethod
    def _not_above(self, strictly: bool) -> Array:
        """For each row, the number of logits that are not above the true class's, or that are below it."""

    def within(self, k: int) -> Array:
        """Whether fewer than k classes come before the true one. Equal logits are ordered by class, and NaN is before all."""
        ahead = self.classes - self._not_above(False)
        found: Array = ahead < k
        sure = self.losses < math.log(k + 1) - 1e-3  # with p above 1/(k + 1), k others can't be as likely
        open_ones = found & ~sure
        unsure = np.flatnonzero(open_ones)
        if len(unsure) > self.rows // 4:
            unsure = np.flatnonzero(open_ones & (self.classes - 1 - self._not_above(True) >= k))
        if len(unsure):
            logits = self.logits.numpy()[unsure]
            own = logits[np.arange(len(unsure)), self.target[unsure]][:, None]
            earlier = np.arange(self.classes) < self.target[unsure, None]
            found[unsure] = ahead[unsure] + ((logits == own) & earlier).sum(1) < k
        return found

    def _settled(self, predicted: Array, unsure: Array) -> Array:
        if len(unsure):
            predicted[unsure] = self.logits.numpy()[unsure].argmax(1)
        return predicted


class _Few(ClassRows):
    @cached_property
    def _by_class(self) -> Tensor:
        return torch.from_numpy(turned(self.logits.numpy()))

    @cached_property
    def _own(self) -> Tensor:
        """The logit of the true class of each row."""
        return torch.from_numpy(self._by_class.numpy().ravel()[self.target * self.rows + np.arange(self.rows)])

    @cached_property
    def _highest(self) -> Tensor:
        return self._by_class.amax(0)

    @cached_property
    def _exps(self) -> Tensor:
        """The probability of each class, as a multiple of the highest."""
        return (self._by_class - self._highest).exp_()

    @cached_property
    def _total(self) -> Tensor:
        return self._exps.sum(0)

    @cached_property
    def losses(self) -> Array:
        found: Array = self._total.log().add_(self._highest - self._own).numpy()
        return found

    @cached_property
    def hit(self) -> Array:
        found: Array = self.predicted == self.target
        return found

    @cached_property
    def predicted(self) -> Array:
        which = _marks(torch.eq, self._by_class, self._highest)
        found = torch.mv(which.t(), torch.arange(self.classes, dtype=which.dtype)).numpy().astype(np.int64)
        return self._settled(found, np.flatnonzero(which.sum(0).numpy() != 1))

    @cached_property
    def surest(self) -> Array:
        found: Array = self._total.reciprocal().numpy()
        return found

    def log_odds(self) -> Tensor:
        logs = self._total.log()
        scores = self._by_class - (self._highest + logs)
        places = self.predicted * self.rows + np.arange(self.rows)
        exps = self._exps.clone()
        exps.numpy().ravel()[places] = 0
        rest = exps.sum(0)
        left = rest.log()
        if len(small := np.flatnonzero(rest.numpy() < _LEAST)):
            left.numpy()[small] = _log_rest(self.logits[small], self.predicted[small])
        sure = np.flatnonzero(self._total.numpy() < 2)
        scores.numpy().ravel()[places[sure]] = (logs - left).numpy()[sure] - 2 * math.log(2)
        return scores.t()

    def _not_above(self, strictly: bool) -> Array:
        return _marks(torch.lt if strictly else torch.le, self._by_class, self._own).sum(0).numpy()


class _Many(ClassRows):
    """Done for each batch, so every look-up counts: no cached properties on the way to the loss and to what is right.

    Exponentials of the logits as they are, not of what is left below the largest: one pass less. The logarithm of their sum
    is taken in float64, so the loss is as exact. Where a sum may be too large or too small for float32, all is done again
    below the largest.
    """

    _own: Array | None = None
    _hit: Array | None = None

    def _pass(self) -> Array:
        """The logit of the true class of each row; the largest is then in `_highest`, log(sum of exp) in `_log_total`."""
        if self._own is None:
            highest = self.logits.amax(1)
            self._highest = highest.numpy()
            exps = self.scratch.like(self.logits, "exponentials")
            total = torch.exp(self.logits, out=exps).sum(1).numpy()
            if total.min() > _LEAST and total.max() < _MOST:
                self._log_total = np.log(total, dtype=np.float64)
            else:
                total = torch.sub(self.logits, highest[:, None], out=exps).exp_().sum(1).numpy()
                self._log_total = np.log(total, dtype=np.float64) + self._highest
            flat = self.logits.numpy().reshape(-1)
            self._own = flat[self.target + self.scratch.firsts(self.rows, self.classes)]
        return self._own

    @property
    def losses(self) -> Array:
        own = self._pass()
        found: Array = self._log_total - own
        return found

    @property
    def hit(self) -> Array:
        """Rows are looked up where several logits may be the largest, which needs probabilities up to 1/2, and for NaN."""
        if self._hit is None:
            own = self._pass()
            found = own == self._highest
            unsure = np.flatnonzero((found & ~(self._log_total - own <= _HALF)) | (self._highest != self._highest))
            if len(unsure):
                found[unsure] = self.logits.numpy()[unsure].argmax(1) == self.target[unsure]
            self._hit = found
        return self._hit

    @cached_property
    def predicted(self) -> Array:
        found: Array = self.logits.numpy().argmax(1)
        return found

    @cached_property
    def surest(self) -> Array:
        self._pass()
        found: Array = np.exp(self._highest - self._log_total)
        return found

    def log_odds(self) -> Tensor:
        self._pass()
        scores = self.logits - torch.from_numpy(self._log_total).to(self.logits.dtype)[:, None]
        sure = np.flatnonzero(self._highest - self._log_total > -_HALF)
        if len(sure):
            likeliest = self.predicted[sure]
            logs = (self._highest - self._log_total)[sure]
            scores.numpy()[sure, likeliest] = -_log_rest(self.logits[sure], likeliest) - logs - 2 * math.log(2)
        return scores

    def _not_above(self, strictly: bool) -> Array:
        own = self._pass()
        compare, marks = torch.lt if strictly else torch.le, self.scratch.like(self.logits, "marks")
        return compare(self.logits, torch.from_numpy(own)[:, None], out=marks).sum(1).numpy()


def _marks(compare: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
    """1 and 0 in place of true and false: several times as fast to make, and to add up."""
    return compare(left, right, out=torch.empty_like(left))


def _log_rest(logits: Tensor, likeliest: Array) -> Array:
    """For each row, the log of the sum of all other classes' exponentials, as a multiple of the likeliest one's."""
    places = torch.from_numpy(likeliest)[:, None]
    others = logits.scatter(1, places, -torch.inf)
    second = others.amax(1, keepdim=True).clamp_min(torch.finfo(others.dtype).min)
    found: Array = ((others - second).exp_().sum(1).log_() + (second - logits.gather(1, places))[:, 0]).numpy()
    return found
