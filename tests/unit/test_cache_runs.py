"""The cache as a run uses it: how its rows are compressed, what its budget is on, and who else reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from test_engine_data import stopped_at
from test_engine_kit import equal, kinds, quick, recipe, weights

import flatout as fo
from flatout.base.errors import RecipeError, Stopped
from flatout.base.tree import to_data, to_text
from flatout.data.cache.cache import Cache
from flatout.data.cache.filling import place
from flatout.data.cache.mapped import cached_compression, cached_rows
from flatout.data.feeds.feed import feed
from flatout.data.sources.tables import encoding
from flatout.explore.survey.survey import survey
from flatout.explore.survey.view import doc
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.plan import make as planned
from flatout.plan import situation, tier
from flatout.plan.plan import Prediction
from flatout.runs.verbs import Run
from flatout.store.run_folder import all_runs


def measured(value: float) -> MeasuredRate:
    return MeasuredRate(value, value, value, 5)


@contextmanager
def machine(disk_bytes_s: float, free_bytes: int, step_s: float = 1e-6) -> Iterator[None]:
    """Made up: a disk, free memory, and steps that take so long."""
    ceilings = Ceilings("cpu", {"fp32": measured(1e11)}, disk_read_bytes_per_s=measured(disk_bytes_s))
    with (
        quick(),
        patch.object(planned, "ceilings_of", lambda device, cache, job: ceilings),
        patch.object(tier, "free_bytes", lambda device: free_bytes),
        patch.object(situation, "predict", lambda job, settings, ceilings: Prediction(step_s=step_s)),
    ):
        yield


SLOW, AMPLE = {"disk_bytes_s": 1e6, "free_bytes": 1000}, {"disk_bytes_s": 1e6, "free_bytes": 10**9}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Of one colour each, in two sizes: they compress."""
    for number in range(24):
        folder = tmp_path / "photos" / ("light" if number % 2 else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        picture = np.full((40 + 8 * (number % 3), 48, 3), 60 + 5 * number, np.uint8)
        Image.fromarray(picture).save(folder / f"{number}.png")
    return tmp_path / "photos"


def asked(photos: Path, **settings: Any) -> fo.Recipe:
    data = fo.data.images(photos, size=16, holdout=0.25, augment=["random_resized_crop", "flip"])
    return recipe(data=data, model="mlp", batch=6, budget="9 steps", settings={"tier": "mapped", **settings})


def written(recipe: fo.Recipe, cache: Path) -> str | None:
    return cached_compression(Cache(cache), recipe.load_data().train.compact()[0])


def row(run: Run, name: str) -> Any:
    (choice,) = [choice for choice in run.plan.choices if choice.name == name]
    return choice


def test_rows_are_compressed_where_the_disk_is_what_training_waits_for(tmp_path: Path, photos: Path) -> None:
    with machine(**SLOW):
        run = fo.run(asked(photos), runs=tmp_path / "runs", cache=tmp_path / "cache")
    choice = row(run, "cache_compression")
    assert choice.value in ("lz4", "zstd") and written(asked(photos), tmp_path / "cache") == choice.value
    assert "the disk reads 1 MB/s" in choice.why and "x smaller, decompressed at" in choice.why
    assert f"cache compression  {choice.value}" in run.explain() and "the disk reads 1 MB/s" in run.explain()


def test_flatout_data_says_how_rows_would_be_written(tmp_path: Path, photos: Path) -> None:
    with machine(**SLOW):
        found = survey(asked(photos), seconds=0.2, cache=tmp_path / "cache")
    said = " ".join(to_text(doc(found)).split())
    assert re.search(r"compression (lz4|zstd): [^.]*disk reads 1 MB/s", said)
    assert to_data(doc(found))["cache_compression"]["value"] in ("lz4", "zstd")


def test_what_fits_into_memory_is_not_compressed_and_nothing_is_tried(tmp_path: Path, photos: Path) -> None:
    with machine(**AMPLE), patch.object(tier, "sample_rows", lambda source: pytest.fail("read for nothing")):
        run = fo.run(asked(photos), runs=tmp_path / "runs", cache=tmp_path / "cache")
        assert row(run, "cache_compression").value == "none" == written(asked(photos), tmp_path / "cache")
        assert "free memory" in row(run, "cache_compression").why
        other = fo.run(asked(photos, tier="pinned"), runs=tmp_path / "pinned", cache=tmp_path / "cache")
        assert all(choice.name != "cache_compression" for choice in other.plan.choices)  # it writes none


def test_what_was_begun_in_one_compression_goes_on_in_it(tmp_path: Path, photos: Path) -> None:
    cache = tmp_path / "cache"
    with machine(**AMPLE):
        fo.run(asked(photos, cache_compression="lz4"), runs=tmp_path / "first", cache=cache)
        run = fo.run(asked(photos), runs=tmp_path / "then", cache=cache)
        assert row(run, "cache_compression").value == "lz4" and "already" in row(run, "cache_compression").why
        for auto in ("auto", "AUTO"):
            same = fo.explain(asked(photos, cache_compression=auto), cache=cache)
            assert "already" in to_text(same)
    with pytest.raises(RecipeError, match=r"cache_compression: expected one of auto, none, lz4, zstd, got 'lz5'"):
        asked(photos, cache_compression="lz5")


def test_every_compression_learns_the_same_bits(tmp_path: Path, photos: Path) -> None:
    learned = {}
    with quick():
        for name in ("none", "lz4", "zstd"):
            cache = tmp_path / name
            for again in range(2):  # the second reads what the first has written
                run = fo.run(asked(photos, cache_compression=name), runs=tmp_path / f"runs-{name}-{again}", cache=cache)
                learned[name, again] = weights(run)
            assert written(asked(photos), cache) == name
        mixed = fo.run(asked(photos, cache_compression="none"), runs=tmp_path / "mixed", cache=tmp_path / "zstd")
        learned["mixed", 0] = weights(mixed)
        learned["resident", 0] = weights(fo.run(asked(photos, tier="resident"), runs=tmp_path / "resident", cache=None))
    for name, found in learned.items():
        assert equal(found, learned["resident", 0]), name


def test_a_run_goes_on_exactly_while_the_setting_is_another(tmp_path: Path, photos: Path) -> None:
    cache = tmp_path / "cache"
    with quick():
        whole = fo.run(asked(photos, cache_compression="zstd"), runs=tmp_path / "whole", cache=tmp_path / "other")
        with pytest.raises(Stopped):
            fo.run(asked(photos, cache_compression="lz4"), runs=tmp_path / "runs", cache=cache, observers=[stopped_at(2)])
        assert 0 < cached_rows(Cache(cache), asked(photos).load_data().train.compact()[0]) <= 18
        (folder,) = all_runs(tmp_path / "runs")
        plan = folder.read("plan.json")
        plan["settings"]["cache_compression"] = "zstd"
        folder.write("plan.json", plan)
        rest = fo.run(asked(photos, cache_compression="lz4"), runs=tmp_path / "runs", cache=cache)
    assert kinds(rest, "resumed") and equal(weights(rest), weights(whole))


def test_batches_of_part_lz4_and_part_zstd_are_those_of_the_source(tmp_path: Path, photos: Path) -> None:
    data = fo.data.images(photos, size=16, augment=["random_resized_crop", "flip"])
    for name, rows in (("lz4", torch.arange(9)), ("zstd", torch.arange(4, 17))):
        some: Any = place(data.train.compact()[0], "mapped", Cache(tmp_path / "cache", compression=name))
        some.read(rows)
        some.release()
    truth = feed(data, "resident", 5, "cpu", seed=2)
    served: Any = feed(data, "mapped", 5, "cpu", seed=2, cache=Cache(tmp_path / "cache"))
    for _ in range(15):
        batch, expected = served.next(), truth.next()
        assert batch.keys() == expected.keys() and all(batch[key].equal(column) for key, column in expected.items())
    served.release()
    assert len(list((tmp_path / "cache" / "rows").glob("*/part-*"))) >= 3  # the rest, which the feed wrote, in one or more


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two tables that are kept on disk, as those above 2 GB are."""
    monkeypatch.setattr(encoding, "MEMORY_BYTES", 1000)
    random = np.random.default_rng(0)
    for name in ("old", "new"):
        rows = random.normal(size=(400, 3)).round(3)
        lines = [f"{a},{b},{int(a + b > c)}" for a, b, c in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *lines]))
    return {name: {"table": str(tmp_path / f"{name}.csv"), "label": "y"} for name in ("old", "new")}


def table_run(tmp_path: Path, data: dict[str, Any], budget: str) -> Run:
    settings = {"disk_budget": budget, "device": "cpu"}
    with quick():
        return fo.run(
            recipe(data=data, model="mlp", settings=settings, budget="3 steps"),
            runs=tmp_path / "runs",
            cache=tmp_path / "cache",
        )


def test_the_budget_of_a_run_is_on_tables_too(tmp_path: Path, large: dict[str, Any]) -> None:
    tables = tmp_path / "cache" / "tables"
    table_run(tmp_path, large["old"], "1 GB")
    (old,) = tables.iterdir()
    size = Cache(tmp_path / "cache").used_bytes()
    assert size > 4000
    both = table_run(tmp_path, large["new"], f"{2 * size + 1000} B")
    assert len(list(tables.iterdir())) == 2 and kinds(both, "degraded") == []
    one = table_run(tmp_path, large["new"], f"{size + 1000} B")
    (left,) = tables.iterdir()
    assert left != old and kinds(one, "degraded") == []
    none = table_run(tmp_path, large["new"], "1 kB")
    (event,) = kinds(none, "degraded")
    assert event["what"] == "disk_budget" and "over its limit of 1 kB: all of it is in use" in event["why"]
    assert left.exists() and none.result["status"] == "finished"


def test_a_loader_reads_what_a_run_has_cached(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with quick():
        fo.run(asked(photos, cache_compression="lz4"), runs=tmp_path / "runs", cache=tmp_path / "cache")
    data = fo.data.images(photos, size=16, holdout=0.25)
    with fo.loader(data, 6, device="cpu", tier="streamed") as plain:
        expected = [batch["x"] for batch in plain]
    source = data.train.compact()[0]
    opened: list[Any] = []
    monkeypatch.setattr(type(source), "read_with", lambda self, rows, take: opened.append(rows), raising=False)
    monkeypatch.setattr(type(source), "read", lambda self, rows: opened.append(rows))
    with fo.loader(data, 6, device="cpu", tier="mapped", cache=tmp_path / "cache") as served:
        assert all(batch["x"].equal(x) for batch, x in zip(served, expected, strict=True))
    assert opened == []
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name not in ("rows", "alone", "traces")]


def test_a_cache_may_be_named_by_text(tmp_path: Path) -> None:
    with quick():
        run = fo.run(recipe(budget="2 steps"), runs=str(tmp_path / "runs"), cache=str(tmp_path / "cache"))
    assert run.result["steps"] == 2
    assert "accuracy" in fo.evaluate(run, cache=str(tmp_path / "cache"))
