"""Whether a model can be split as a mesh says, found out from the whole model: before anything is written or started."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def check_fits(model: nn.Module, axes: Mapping[str, int], plan: Mapping[str, str] | None, schedule: str) -> None:
    """`plan`: how tensor parallel splits a model that brings none. `schedule`: of the stages of a pipeline."""
    if axes["tensor"] > 1:
        from flatout.engine.parallel.tensor import layouts_of, planned

        layouts_of(*planned(model, plan, axes["tensor"]))
    if axes["pipeline"] > 1:
        from flatout.engine.parallel.pipeline import stages_of
        from flatout.engine.parallel.stages import cut

        cut(model, stages_of(schedule, axes["pipeline"]))
