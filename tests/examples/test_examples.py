"""The examples on the data that they are about, with a short budget: what they promise of learning is already to be seen."""

from __future__ import annotations

import lzma
import math
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import flatout
from flatout.recipe.load import read_recipe

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
Result = dict[str, Any]


@pytest.fixture(scope="module")
def ceilings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine is measured once."""
    return tmp_path_factory.mktemp("ceilings")


@pytest.fixture
def run(shared_data: Callable[[str], Path], tmp_path: Path, ceilings: Path) -> Iterator[Callable[..., Result]]:
    """`run("adult", "adult", "budget=2 epochs")`: a copy of the example with its data beside it, as a user would have it."""

    def trained(example: str, needs: str, *overrides: str) -> Result:
        (tmp_path / "data").symlink_to(shared_data(needs).parent)
        copied = shutil.copy(EXAMPLES / f"{example}.yaml", tmp_path)
        recipe = read_recipe(Path(copied), overrides, {"device": "cpu"})
        result = flatout.run(recipe, runs=tmp_path / "runs", cache=ceilings).result
        assert result["status"] == "finished"
        return result

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on cores that are shared, one thread is faster than two
    yield trained
    torch.set_num_threads(threads)


def test_adult(run: Callable[..., Result]) -> None:
    """Always saying no is right for 0.764 of the test file."""
    result = run("adult", "adult", "budget=2 epochs")
    assert result["metrics"]["accuracy"] > 0.845 and result["metrics"]["auc"] > 0.90
    assert result["samples"] == 2 * 32_561


def test_bank(run: Callable[..., Result]) -> None:
    result = run("bank", "bank-marketing", "budget=4 epochs")
    assert 0.77 < result["metrics"]["auc"] < 0.83  # above that it would know the duration
    assert result["samples"] == 4 * (41_188 - 8_238)


def test_covertype(run: Callable[..., Result], shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Its first 60,000 rows, 0.595 of them of one kind."""
    few = tmp_path / "few.csv"
    with lzma.open(shared_data("covertype/covtype.csv.xz"), "rt") as whole:
        few.write_text("".join(islice(whole, 60_001)))
    result = run("covertype", "covertype", f"data.table={few}", "budget=6 epochs", "batch=256")
    assert result["metrics"]["accuracy"] > 0.87


def test_fashion_mnist(run: Callable[..., Result]) -> None:
    result = run("fashion_mnist", "fashion-mnist", "budget=100 steps", "batch=64")
    assert result["metrics"]["accuracy"] > 0.78


def test_shakespeare(run: Callable[..., Result]) -> None:
    """Who knows only how frequent each character is pays 3.3 nats; who knows the one before, 2.5."""
    result = run("shakespeare", "tiny-shakespeare", "budget=150 steps", "batch=8", "data.holdout=0.02")
    assert result["metrics"]["loss"] < 2.6


def test_shakespeare_gpu(run: Callable[..., Result]) -> None:
    """Much too large for here: that it runs, cut down, and begins where no character is likelier than another of the 65."""
    smaller = ["model.layers=1", "model.heads=1", "model.width=16", "data.window=32"]
    result = run("shakespeare_gpu", "tiny-shakespeare", *smaller, "budget=3 steps")
    assert result["steps"] == 3 and result["metrics"]["loss"] == pytest.approx(math.log(65), abs=0.2)
