"""Training from files, streams and tiers: which of them serves the data never changes what is learned."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sample_datasets import Count, Noisy
from test_engine_kit import equal, kinds, quick, recipe, train, weights
from torch.utils.data import IterableDataset

import flatout as fo
from flatout.base.errors import DataError, Stopped, UsageError
from flatout.data.decoding.decode import Turbo
from flatout.data.feeds import feed as feeds
from flatout.data.feeds.feed import feed_options
from flatout.data.feeds.resident import ResidentFeed
from flatout.data.feeds.streamed import IterableFeed
from flatout.data.sources.datasets import streamtask
from flatout.recipe.load import read_recipe
from flatout.runs.verbs import Run

TIERS = ("resident", "pinned", "mapped", "streamed")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of little photos of differing sizes, light and dark."""
    random = np.random.default_rng(0)
    for label, brightness in (("dark", 60), ("light", 190)):
        folder = tmp_path / "photos" / label
        folder.mkdir(parents=True)
        for number in range(14):
            height, width = random.integers(18, 60, 2)
            noise = random.integers(-40, 40, (height, width, 3))
            Image.fromarray((brightness + noise).astype(np.uint8)).save(folder / f"{number}.{'png' if number % 3 else 'jpg'}")
    return tmp_path / "photos"


def photo_recipe(photos: Path, tier: str, **given: Any) -> fo.Recipe:
    augment = ["random_resized_crop", "flip", {"mixup": 0.2}]
    data = fo.data.images(photos, size=16, holdout=0.25, augment=augment)
    return recipe(data=data, model="mlp", batch=8, budget=given.pop("budget", "12 steps"), settings={"tier": tier}, **given)


def run(asked: fo.Recipe, runs: Path, cache: Path | None = None, observers: Any = ()) -> Run:
    with quick():
        return fo.run(asked, runs=runs, cache=cache, observers=observers)


def test_every_tier_learns_the_same_bits_from_photos(tmp_path: Path, photos: Path) -> None:
    cache = tmp_path / "cache"
    learned = {tier: run(photo_recipe(photos, tier), tmp_path / tier, cache) for tier in TIERS}
    again = run(photo_recipe(photos, "mapped"), tmp_path / "again", cache)  # from the cache of the run before
    for name, other in {**learned, "again": again}.items():
        assert equal(weights(other), weights(learned["resident"])), name
    assert learned["streamed"].result["reading"]["rows_read"] >= 12 * 8


def stopped_at(step: int) -> Any:
    """Sends a signal once the run has come so far."""
    sent = []

    def observe(event: Any) -> None:
        if event["kind"] == "step" and event["step"] >= step and not sent:
            sent.append(event["step"])
            signal.raise_signal(signal.SIGTERM)

    return observe


@pytest.mark.parametrize("tier", ["mapped", "streamed"])
def test_a_run_that_was_stopped_goes_on_with_the_same_photos(tmp_path: Path, photos: Path, tier: str) -> None:
    whole = run(photo_recipe(photos, tier), tmp_path / "whole", tmp_path / "cache")
    with pytest.raises(Stopped):
        run(photo_recipe(photos, tier), tmp_path / "parts", tmp_path / "cache", observers=[stopped_at(4)])
    rest = run(photo_recipe(photos, tier), tmp_path / "parts", tmp_path / "cache")
    assert 4 <= kinds(rest, "resumed")[0]["step"] < 12 and equal(weights(rest), weights(whole))


def test_another_decoder_on_resume_is_an_event_and_reads_nothing_that_the_first_one_kept(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        run(photo_recipe(photos, "mapped"), tmp_path / "runs", tmp_path / "cache", observers=[stopped_at(4)])
    before = Turbo().id
    monkeypatch.setattr(Turbo, "id", "turbo of another version")
    rest = run(photo_recipe(photos, "mapped"), tmp_path / "runs", tmp_path / "cache")
    assert kinds(rest, "resumed")
    (said,) = [event["why"] for event in kinds(rest, "degraded") if event["what"] == "data"]
    assert "turbo of another version" in said and before in said
    assert len(list((tmp_path / "cache" / "rows").iterdir())) >= 2


class Stream(IterableDataset[Any]):
    """Numbers without end, each a function of its place."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        return self._from(0)

    def _from(self, place: int) -> Iterator[Any]:
        self.place = place
        while True:
            x = torch.randn(4, generator=torch.Generator().manual_seed(self.place))
            self.place += 1
            yield x, int(x.sum() > 0)


class Remembering(Stream):
    """The same, and it knows where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        return self._from(start)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"]


def test_every_reader_of_a_stream_begins_at_its_start() -> None:
    data = fo.data.dataset(Stream(), classes=2, processes=False)
    first, second = (IterableFeed(data.train, feed_options(8, "cpu")) for _ in range(2))
    served = [first.next()["x"] for _ in range(3)]
    first.close()
    assert all(torch.equal(second.next()["x"], batch) for batch in served)
    second.close()


@pytest.mark.parametrize("kind", [Stream, Remembering])
def test_a_stream_goes_on_where_it_was(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamtask, "_SNAPSHOT_S", 0.0)  # its state is asked for at every batch

    def asked() -> fo.Recipe:
        data = fo.data.dataset(kind(), classes=2, processes=False)
        return recipe(data=data, model="mlp", batch=8, budget="20 steps")

    whole = run(asked(), tmp_path / "whole")
    with pytest.raises(Stopped):
        run(asked(), tmp_path / "parts", observers=[stopped_at(8)])
    rest = run(asked(), tmp_path / "parts")
    assert kinds(rest, "resumed")[0]["step"] == 8 and equal(weights(rest), weights(whole))
    replayed = [event["why"] for event in kinds(rest, "degraded") if "again" in event["why"]]
    assert bool(replayed) == (kind is Stream)


def test_a_stream_can_not_count_epochs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="epochs can't be counted"):
        train(tmp_path, data=fo.data.dataset(Count(10_000), classes=3, processes=False), model="mlp", budget="2 epochs")
    assert not tmp_path.exists() or list(tmp_path.iterdir()) == []


def test_samples_that_vary_are_never_kept(tmp_path: Path) -> None:
    data = fo.data.dataset(Noisy(60), classes=60, workers=0)
    done = train(tmp_path, data=data, model="mlp", budget="6 steps")
    assert done.plan.settings.tier == "streamed"


def test_what_does_not_fit_on_the_device_moves_down_a_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(tmp_path / "plain", settings={"tier": "resident"})

    def full(*given: Any, **options: Any) -> ResidentFeed:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB\nmore")

    monkeypatch.setattr(feeds, "ResidentFeed", full)
    moved = train(tmp_path / "moved", settings={"tier": "resident"})
    (event,) = kinds(moved, "degraded")
    assert event["what"] == "tier" and "host memory instead: CUDA out of memory. Tried to allocate 80.00 GiB" in event["why"]
    assert equal(weights(moved), weights(plain))


def test_a_table_predicts_without_its_training_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = random.choice(["red", "green", "blue"], 300)
    numbers = random.normal(size=300)
    labels = np.where((words == "red") | (numbers > 1), "yes", "no")
    lines = [f"{word},{number:.4f},{label}" for word, number, label in zip(words, numbers, labels, strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["colour,size,answer", *lines]) + "\n")
    written = {"table": str(tmp_path / "train.csv"), "label": "answer", "holdout": 0.2}
    done = train(tmp_path / "runs", data=written, model="mlp", budget="30 epochs")
    assert done.result["metrics"]["accuracy"] > 0.9
    shutil.move(tmp_path / "train.csv", tmp_path / "gone.csv")
    (tmp_path / "new.csv").write_text("size,colour\n0.0,red\n0.0,blue\n2.5,violet\n")
    later = fo.load(done.path)
    predicted = fo.predict(later, tmp_path / "new.csv")
    assert predicted["prediction"].tolist()[:2] == [1, 0]
    assert len(predicted["prediction"]) == 3  # a colour never seen is no error
    measured = fo.evaluate(later, tmp_path / "gone.csv")
    assert measured["accuracy"] > 0.9


def test_photos_are_predicted_without_labels_and_bad_ones_are_counted(tmp_path: Path, photos: Path) -> None:
    (photos / "dark" / "broken.jpg").write_bytes((photos / "dark" / "0.jpg").read_bytes()[:-400])
    written = {"images": str(photos), "size": 16, "holdout": 0.2, "on_bad": "skip"}
    done = train(tmp_path / "runs", data=written, model="mlp", budget="10 epochs", batch=8)
    some = tmp_path / "some"
    some.mkdir()
    shutil.copy(photos / "light" / "1.png", some / "a.png")
    shutil.copy(photos / "dark" / "1.png", some / "b.png")
    assert fo.predict(fo.load(done.path), some)["prediction"].tolist() == [1, 0]
    with pytest.raises(DataError, match=r"broken\.jpg"):
        train(tmp_path / "strict", data={**written, "on_bad": "error"}, model="mlp", budget="10 epochs", batch=8)


def test_a_cache_that_can_not_be_used_costs_time_and_no_run(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    done = run(photo_recipe(photos, "mapped"), tmp_path / "runs", tmp_path / "cache")
    (event,) = kinds(done, "degraded")
    assert event["what"] == "tier" and "can't be used" in event["why"]


def test_a_python_recipe_predicts_from_other_files(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flatout as fo\n"
        f"recipe = fo.Recipe(data=fo.data.images({str(photos)!r}, size=16, holdout=0.2), model='mlp', batch=8, lr=1e-2,\n"
        "                   budget='8 epochs', settings={'device': 'cpu'})\n"
    )
    done = run(read_recipe(tmp_path / "mine.py"), tmp_path / "runs")
    assert fo.predict(fo.load(done.path), photos / "light")["prediction"].float().mean() > 0.5
    assert fo.evaluate(fo.load(done.path), photos)["accuracy"] > 0.5


def test_mixed_labels_need_an_objective_that_can_share_them(tmp_path: Path, photos: Path) -> None:
    data = fo.data.images(photos, size=16, augment=["random_resized_crop", {"mixup": 0.2}])
    with pytest.raises(UsageError, match="use objective: classify, not binary"):
        train(tmp_path / "runs", data=data, model="mlp", objective="binary", batch=8)
