"""Pictures of how well a model does: right for answers that are known, and there for each kind of data."""

from __future__ import annotations

import io
import re
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_machine import known_cache
from PIL import Image

import flatout as fo
from flatout.base.errors import UsageError
from flatout.base.html import to_html
from flatout.base.tree import Doc, Node, Picture, Thumbnails, to_data
from flatout.data.source import ArraySource
from flatout.recipe.load import recipe_from
from flatout.reporting.judged.certainty import certainty_nodes
from flatout.reporting.judged.classes import class_nodes
from flatout.reporting.judged.residuals import residual_nodes
from flatout.reporting.judged.verb import judged_nodes
from flatout.reporting.judged.worst import worst_nodes
from flatout.runs.held_out import HeldOut
from flatout.store.run_folder import RunFolder

EVIL = "<img src=x onerror=alert(2)>"
NOWHERE = ArraySource({"x": torch.zeros(4, 3), "y": torch.zeros(4)})


def classified(odds: list[list[float]], truth: list[int], names: tuple[str, ...] = ()) -> HeldOut:
    probabilities, true = torch.tensor(odds), torch.tensor(truth)
    own = probabilities.gather(1, true.view(-1, 1)).flatten()
    return HeldOut("validation", "classify", NOWHERE, true, probabilities.argmax(1), own, probabilities, names)


def table(nodes: list[Node], key: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = to_data(Doc(tuple(nodes)))[key]
    return rows


def captions(nodes: list[Node]) -> str:
    return " ".join(node.caption for node in nodes if isinstance(node, Picture))


def test_recall_and_precision_are_those_of_the_answers() -> None:
    held = classified([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], [0, 0, 1, 1], ("no", EVIL))
    nodes = class_nodes(held)
    worst, best = table(nodes, "classes")
    assert worst == {"class": EVIL, "rows": 2, "recall": 0.5, "precision": 1.0}
    assert best == {"class": "no", "rows": 2, "recall": 1.0, "precision": pytest.approx(2 / 3)}
    assert "<img src=x" not in to_html(Doc(tuple(nodes)), "x")


def test_of_many_classes_the_most_frequent_confusions() -> None:
    truth = torch.arange(100).repeat(3)
    said = truth.clone()
    said[[7, 107, 207]] = 9
    held = HeldOut("test", "classify", NOWHERE, truth, said, torch.ones(300))
    first = table(class_nodes(held), "confusions")[0]
    assert first == {"true": "7", "said": "9", "rows": 3} and not captions(class_nodes(held))


@pytest.mark.parametrize(
    ("scores", "truth", "area"),
    [
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], 1.0),
        ([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1], 0.5),
        ([0.9, 0.2, 0.8, 0.1], [0, 0, 1, 1], 0.25),
    ],
)
def test_the_area_under_the_roc(scores: list[float], truth: list[int], area: float) -> None:
    nodes = certainty_nodes(classified([[1 - one, one] for one in scores], truth, ("no", "yes")))
    assert f"area under the curve: yes {area:.4f}" in captions(nodes)


def test_the_error_of_calibration() -> None:
    right = certainty_nodes(classified([[0.25, 0.75]] * 4, [0, 1, 1, 1]))
    wrong = certainty_nodes(classified([[0.25, 0.75]] * 4, [0, 0, 0, 0]))
    assert "On average it is 0% off" in captions(right) and "On average it is 75% off" in captions(wrong)


def test_rows_of_one_class_or_without_a_probability_are_no_obstacle() -> None:
    alone = classified([[0.5, 0.5], [0.25, 0.75]], [1, 1])
    assert "ROC" not in captions(certainty_nodes(alone)) and len(table(class_nodes(alone), "classes")) == 1
    broken = classified([[float("nan"), float("nan")], [0.25, 0.75]], [0, 1])
    assert worst_nodes(broken) and class_nodes(broken) and certainty_nodes(broken)
    assert certainty_nodes(HeldOut("test", "classify", NOWHERE, torch.ones(3).long(), torch.ones(3).long())) == []


def test_without_a_mistake_that_is_said() -> None:
    nodes = worst_nodes(classified([[0.9, 0.1]], [0]))
    assert "All held-out rows are classified correctly" in to_html(Doc(tuple(nodes)), "x")


def test_the_worst_rows_of_a_regression_come_first() -> None:
    truth = torch.arange(1000.0)
    said = truth.clone()
    said[17], said[400], said[5] = 3.0, float("nan"), 5.5
    nodes = residual_nodes(HeldOut("validation", "regress", NOWHERE, truth, said))
    first, second, *_ = table(nodes, "worst")
    assert (first["row"], first["off"], second["row"], second["off"]) == (17, -14.0, 5, 0.5)
    assert "1 predictions are not finite" in to_html(Doc(tuple(nodes)), "x")
    nothing = residual_nodes(HeldOut("validation", "regress", NOWHERE, truth, torch.full((1000,), float("inf"))))
    assert "No prediction is finite" in to_html(Doc(tuple(nothing)), "x")


def test_the_page_of_a_run_shows_its_mistakes_as_images(run: RunFolder, tmp_path: Path) -> None:
    loaded = fo.load(run.path)
    page = loaded.report(tmp_path / "page.html", evaluate=True).read_text()
    assert len(page.encode()) < 200_000 and "Which classes it confuses" in page and "ROC" in page
    counted = sum(row["rows"] for row in table(judged_nodes(loaded), "classes"))
    correct = sum(row["rows"] * row["recall"] for row in table(judged_nodes(loaded), "classes"))
    assert counted == 359 and correct / counted == pytest.approx(run.result["metrics"]["accuracy"])
    photos = re.findall(r'<figure class="photo"><img src="data:image/jpeg;base64,([^"]+)"', page)
    assert len(photos) == 12 and Image.open(io.BytesIO(b64decode(photos[0]))).size == (112, 112)
    assert "Which classes it confuses" not in loaded.report(tmp_path / "plain.html").read_text()
    with pytest.raises(UsageError, match="one run, got 2"):
        fo.report(loaded, shutil.copytree(run.path, tmp_path / "copy-1"), evaluate=True)


def small_run(folder: Path, **recipe: Any) -> fo.Run:
    asked = {"model": "mlp", "batch": 8, "lr": 1e-3, "budget": "2 steps", "settings": {"threads": 1}, **recipe}
    return fo.run(recipe_from(asked, folder), runs=folder / "runs", cache=known_cache(), planning="off", quiet=True)


def test_photos_in_files_are_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "photos" / f"kind {number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20 + number, 40, 3), dtype=np.uint8)).save(place / f"{number}.png")
    data = {"images": str(tmp_path / "photos"), "size": 16, "holdout": 0.5}
    nodes = judged_nodes(small_run(tmp_path, data=data, objective="classify"), cache=tmp_path / "cache")
    (photos,) = (node for node in nodes if isinstance(node, Thumbnails))
    assert photos.photos and all("kind" in caption and len(content) <= 4000 for content, caption in photos.photos)


def test_texts_are_continued(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Now is the winter of our discontent\n" * 40)
    model = {"gpt": {"layers": 1, "width": 16, "heads": 2}}
    data = {"text": str(tmp_path / "words.txt"), "window": 16, "holdout": 0.3}
    run = small_run(tmp_path, data=data, model=model, objective="next_token")
    page = to_html(Doc(tuple(judged_nodes(run, cache=tmp_path / "cache"))), "x")
    assert page.count("<pre>") == 3 and all(len(text) > 60 for text in re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL))


def test_what_has_no_pictures_says_so(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", x=np.zeros((32, 4), np.float32), y=np.zeros((32, 3), np.int64))
    run = small_run(tmp_path, data={"arrays": str(tmp_path / "many.npz"), "holdout": 0.5}, objective="multilabel")
    with pytest.raises(UsageError, match="this is multilabel"):
        run.report(evaluate=True)


def test_a_run_without_held_out_rows_says_what_to_do(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.zeros((32, 4), np.float32), y=np.arange(32) % 3)
    run = small_run(tmp_path, data={"arrays": str(tmp_path / "all.npz"), "holdout": 0}, objective="classify")
    with pytest.raises(UsageError, match="has no validation part"):
        run.report(evaluate=True)
