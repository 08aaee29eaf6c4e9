"""A Gaussian process over points and steps: what each trial, old or new, will reach at full length, and how sure that is.

The kernel is a Matern of the point, with a length for each axis, times a part that all steps share and a part that fades with
the distance between steps. Its few constants maximise the likelihood with a prior that keeps them reasonable. With the at most
few hundred results of a study this takes milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from flatout.engine.surroundings import compiler_left_out
from flatout.tuning.search.features import Array

_MOST_TO_FIT, MOST = 80, 300  # results
_ITERATIONS = 10
_JITTER = 1e-6


@dataclass(frozen=True)
class KernelConstants:
    """Logarithms: `lengths` one for each axis; then the variances, the reach of steps and the noise."""

    lengths: Array
    shared: float
    fading: float
    reach: float
    offset: float
    noise: float

    @classmethod
    def start(cls, axes: int) -> KernelConstants:
        return cls(np.full(axes, np.log(0.5 * np.sqrt(max(axes, 1)))), 0.0, np.log(0.2), np.log(2.0), np.log(0.2), np.log(0.01))

    def stacked(self) -> Array:
        return np.concatenate([self.lengths, [self.shared, self.fading, self.reach, self.offset, self.noise]])

    @classmethod
    def split(cls, found: Array) -> KernelConstants:
        return cls(found[:-5], *(float(one) for one in found[-5:]))


@dataclass(frozen=True)
class Candidates:
    """What is known of many points at full length. Only the columns of the covariance that are asked for are computed."""

    constants: KernelConstants
    points: Array
    mean: Array
    variance: Array
    partly: Array

    @cached_property
    def _scaled(self) -> tuple[Array, Array]:
        scaled = self.points * np.exp(-self.constants.lengths)
        return scaled, (scaled * scaled).sum(1)

    def covariance(self, place: int) -> Array:
        """Of each point with that one. As `_kernel`, for one column at one step: a search asks for hundreds."""
        scaled, squares = self._scaled
        distance = np.sqrt(np.maximum(squares + squares[place] - 2 * (scaled @ scaled[place]), 0.0) * 5.0)
        matern = ((distance / 3 + 1) * distance + 1) * np.exp(-distance)
        shared, fading, offset = np.exp([self.constants.shared, self.constants.fading, self.constants.offset])
        found: Array = matern * (shared + fading) + offset - self.partly[:, place] @ self.partly
        return found


class Model:
    """`points`: features; `steps`: the logarithm to base 2 of the share of a whole trial; `scores`: higher is better.

    Of very many results the last ones are used.
    """

    def __init__(
        self, points: Array, steps: Array, scores: Array, constants: KernelConstants | None = None, *, fit: bool = True
    ) -> None:
        self.points, self.steps = points[-MOST:], steps[-MOST:]
        self.middle, self.width, targets = _standardised(scores[-MOST:])
        self.constants = constants or KernelConstants.start(points.shape[1])
        if fit:
            self.constants = _fitted(self.points, self.steps, targets, self.constants)
        levels, level = np.unique(self.steps, return_inverse=True)
        apart = np.abs(levels[:, None] - levels[None, :])[level[:, None], level[None, :]]
        kernel = _kernel(self.constants, self.points, self.points, apart)
        kernel[np.diag_indices_from(kernel)] += np.exp(self.constants.noise) + _JITTER
        self.root: Array = np.asarray(torch.linalg.cholesky(torch.from_numpy(kernel)).numpy())
        self.weights = _solve(self.root.T, _solve(self.root, targets, lower=True), lower=False)

    def at_the_end(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the standardised score at full length."""
        mean, partly = self._partly(points)
        return mean, np.sqrt(np.maximum(self._variance - (partly**2).sum(0), 1e-9))

    def together(self, points: Array) -> Candidates:
        mean, partly = self._partly(points)
        return Candidates(self.constants, points, mean, np.maximum(self._variance - (partly**2).sum(0), 0.0), partly)

    def _partly(self, points: Array) -> tuple[Array, Array]:
        cross = _kernel(self.constants, points, self.points, np.abs(self.steps)[None, :])
        return cross @ self.weights, _solve(self.root, np.ascontiguousarray(cross.T), lower=True)

    @property
    def _variance(self) -> float:
        """Before anything is known."""
        return float(np.exp(self.constants.shared) + np.exp(self.constants.fading) + np.exp(self.constants.offset))

    def standardised(self, score: float) -> float:
        return (score - self.middle) / self.width


def _solve(root: Array, right: Array, lower: bool) -> Array:
    right_2d = right.reshape(len(root), -1)
    found = torch.linalg.solve_triangular(torch.from_numpy(root), torch.from_numpy(right_2d), upper=not lower)
    return np.asarray(found.numpy()).reshape(right.shape)


def _standardised(scores: Array) -> tuple[float, float, Array]:
    """Bad scores are cut off: how bad a trial is beyond hope says nothing about where the best one is."""
    middle, best = float(np.median(scores)), float(scores.max())
    cut = np.maximum(scores, middle - 2 * max(best - middle, 1e-12))
    width = float(cut.std())
    width = width if width > 0 else 1.0
    return float(cut.mean()), width, (cut - cut.mean()) / width


def _kernel(constants: KernelConstants, left: Array, right: Array, apart: Array) -> Array:
    """`apart`: between the steps of each pair, or of each column. By torch, whose `exp` is several times as fast."""
    scale = np.exp(-constants.lengths)
    a, b = torch.from_numpy(left * scale), torch.from_numpy(right * scale)
    square = torch.addmm((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :], a, b.T, alpha=-2.0).clamp_min_(0.0)
    matern = _matern(square.mul_(5.0).sqrt_())
    shared, fading, offset = np.exp([constants.shared, constants.fading, constants.offset])
    over_steps = torch.from_numpy(np.ascontiguousarray(apart)).div(-np.exp(constants.reach)).exp_()
    return np.asarray(matern.mul_(fading * over_steps + shared).add_(over_steps, alpha=float(offset)).numpy())


def _matern(distance: Tensor) -> Tensor:
    return ((distance / 3 + 1).mul_(distance).add_(1)).mul_((-distance).exp_())


def _fitted(points: Array, steps: Array, targets: Array, start: KernelConstants) -> KernelConstants:
    """The constants of the highest likelihood with the prior, on a part of the results if they are many."""
    chosen = np.unique(np.linspace(0, len(targets) - 1, min(len(targets), _MOST_TO_FIT)).astype(int))
    likelihood = _Likelihood(*(torch.from_numpy(np.ascontiguousarray(one[chosen])) for one in (points, steps, targets)))
    theta = torch.from_numpy(start.stacked()).clone()
    with compiler_left_out(), torch.no_grad():
        optimizer = torch.optim.LBFGS([theta], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> float:
            value, theta.grad = likelihood(theta)
            return value

        optimizer.step(loss)
    found = theta.numpy().copy()
    return KernelConstants.split(found) if np.isfinite(found).all() else start


class _Likelihood:
    """What the fit minimises, with its gradient in closed form: autograd takes five times as long for such small matrices."""

    def __init__(self, points: Tensor, steps: Tensor, targets: Tensor) -> None:
        self._targets = targets
        self._apart = (steps[:, None] - steps[None, :]).abs()
        self._square = ((points[:, None, :] - points[None, :, :]) ** 2).flatten(0, 1)  # [pairs, axes]
        axes = points.shape[1]
        self._usual = torch.from_numpy(KernelConstants.start(axes).stacked())
        self._spread = torch.cat([torch.full((axes,), 0.9), torch.tensor([0.7, 1.0, 0.7, 1.0, 1.5])]).double()
        self._eye = torch.eye(len(targets), dtype=torch.float64)

    def __call__(self, theta: Tensor) -> tuple[float, Tensor]:
        count = len(self._targets)
        shared, fading, reach, offset, noise = theta[-5:].exp().tolist()
        scales = torch.exp(-2 * theta[:-5])
        distance = (5 * (self._square @ scales) + 1e-12).sqrt_().view(count, count)
        over_steps = torch.exp(self._apart / -reach)
        decay = (-distance).exp()
        matern = _matern(distance)
        by_place = shared + fading * over_steps
        kernel = matern * by_place + offset * over_steps + (noise + _JITTER) * self._eye
        root, wrong = torch.linalg.cholesky_ex(kernel)
        if wrong:
            return 1e6, torch.zeros_like(theta)
        inverse = torch.cholesky_inverse(root)
        weights = inverse @ self._targets
        away = (theta - self._usual) / self._spread
        value = 0.5 * float(self._targets @ weights) + float(root.diagonal().log().sum()) + 0.5 * float(away @ away)
        slope = 0.5 * (inverse - torch.outer(weights, weights))  # of the likelihood by each number of the kernel
        by_square = (slope * by_place * (distance + 1) * decay).flatten() * (-5 / 6)
        faded = slope * over_steps
        of_steps = fading * matern + offset
        gradient = [
            shared * (slope * matern).sum(), fading * (faded * matern).sum(),
            (faded * of_steps * self._apart).sum() / reach, offset * faded.sum(), noise * slope.diagonal().sum(),
        ]  # fmt: skip
        return value, torch.cat([-2 * scales * (by_square @ self._square), torch.stack(gradient)]) + away / self._spread
