"""Small trainings of a pipeline share a GPU once it was measured how much of its memory they need."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from flatout.pipelines.stages.records import StageRecords
from flatout.pipelines.stages.verb import open_pipeline, run_pipeline


def test_trainings_share_the_gpu_when_their_memory_is_known(tmp_path: Path) -> None:
    recipe = {
        "data": "digits",
        "model": {"mlp": {"hidden": [32]}},
        "batch": 64,
        "lr": 1e-2,
        "budget": "20 epochs",
        "evaluate": None,
    }
    stages = {
        f"model{seed}": {"train": {**recipe, "seed": seed}, "planning": "off", "needs": {"cores": 0.5}} for seed in (0, 1)
    }
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump({"stages": stages}))

    def run(*fresh: str) -> tuple[float, float]:
        pipeline = open_pipeline(tmp_path / "pipeline.yaml")
        outcome = run_pipeline(pipeline, cache=tmp_path / "cache", environment=os.environ, fresh=fresh)
        assert outcome.exit_code == 0
        return outcome.together

    work_s, wall_s = run()
    assert work_s <= 1.01 * wall_s, "each has the GPU for itself while nobody knows what it needs"
    records = StageRecords(tmp_path / "built" / ".pipeline")
    for name in stages:
        found = records.last(name)
        assert found is not None and found.gpu_bytes is not None and 100e6 < found.gpu_bytes < 5e9
    work_s, wall_s = run(*stages)
    assert work_s > 1.2 * wall_s
