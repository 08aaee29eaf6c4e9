"""All built-in sources pass the conformance suite in flatout.testing.sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_datasets as given
import torch
from PIL import Image
from ragged import MadeUp, Sized
from torch import Tensor

import flatout as fo
from flatout.data.cache.filling import FillingSource
from flatout.data.cache.memory import MemoryStore
from flatout.data.source import Batch, Column, Source
from flatout.data.sources.datasets.dataset import dataset
from flatout.data.sources.datasets.iterables import IterableSource
from flatout.data.sources.datasets.samples import Form
from flatout.data.sources.photos.images import images
from flatout.data.sources.tables.row_files import rows_on_disk
from flatout.data.sources.texts.sequences import sequences
from flatout.data.sources.texts.text import text
from flatout.testing.sources import SourceConformance, StreamConformance


class InFolder(SourceConformance):
    """Of a source that reads files."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path


class TestArrays(SourceConformance):
    pickles = True

    def source(self) -> Source:
        return fo.data.arrays({"x": np.arange(60.0, dtype=np.float32).reshape(20, 3), "y": np.arange(20) % 3}).train

    def another(self) -> Source:
        return fo.data.arrays({"x": np.arange(60.0, dtype=np.float32).reshape(20, 3), "y": np.arange(20) % 2}).train


class TestTable(InFolder):
    def source(self) -> Source:
        lines = [f"{number},{'abc'[number % 3]},{number % 2}" for number in range(40)]
        (self.path / "some.csv").write_text("\n".join(["size,kind,label", *lines]))
        return fo.data.table(self.path / "some.csv", label="label").train


class TestSql(InFolder):
    def source(self) -> Source:
        pytest.importorskip("duckdb")
        query = "select n % 7 size, chr((65 + n % 3)::int) kind, n % 2 label from (select unnest(range(40)) n) order by n"
        return fo.data.table(sql=query, label="label").train


class TestRowsOnDisk(InFolder):
    pickles = True

    def source(self) -> Source:
        pieces = [{"x": np.full((10, 2), number, np.float32), "y": np.arange(10)} for number in range(3)]
        return rows_on_disk(self.path / "rows" / "train", pieces)


class TestImages(InFolder):
    def source(self) -> Source:
        for number in range(6):
            (self.path / "ab"[number % 2]).mkdir(exist_ok=True)
            image = Image.new("RGB", (20 + number, 30 - number), (40 * number, 90, 10))
            image.save(self.path / "ab"[number % 2] / f"{number}.png")
        return images(self.path, size=16).train


@pytest.mark.parametrize("boundaries", ["none", "loss", "attention"])
class TestText(InFolder):
    @pytest.fixture(autouse=True)
    def kind(self, boundaries: str) -> None:
        self.boundaries = boundaries

    def source(self) -> Source:
        for number in range(3):
            (self.path / f"{number}.txt").write_text(f"{number} is a number. " * 9)
        return text(str(self.path / "*.txt"), window=16, encoding="bytes", boundaries=self.boundaries).train


class TestNarrowText(InFolder):
    def source(self) -> Source:
        (self.path / "some.txt").write_text("to be or not to be, " * 20)
        return text(self.path / "some.txt", window=16, encoding="bytes").train.compact()[0]


@pytest.mark.parametrize("tokens", [None, 64])
class TestSequences(SourceConformance):
    @pytest.fixture(autouse=True)
    def budget(self, tokens: int | None) -> None:
        self.tokens = tokens

    def source(self) -> Source:
        rows = [[1 + (number + place) % 9 for place in range(1 + number * 7 % 13)] for number in range(30)]
        return sequences(rows, torch.arange(30) % 2, tokens=self.tokens).train


class TestDataset(SourceConformance):
    def source(self) -> Source:
        return dataset(given.Squares(20), workers=0, processes=False).train


class TestTensorDataset(SourceConformance):
    def source(self) -> Source:
        held = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
        return dataset(held).train


class TestDatasetOfRandomSamples(SourceConformance):
    def source(self) -> Source:
        made = dataset(given.Noisy(20), workers=0, processes=False).train
        assert made.varies
        return made


@pytest.mark.parametrize("kind", ["photos", "documents", "table"])
class TestFilling(SourceConformance):
    """What a tier keeps of another source."""

    @pytest.fixture(autouse=True)
    def form(self, kind: str) -> None:
        self.kind = kind

    def source(self) -> Source:
        source = MadeUp(self.kind, rows=40, mean=20)
        return FillingSource(source, MemoryStore(source))


class InPieces(Sized):
    piece_rows = 3


class TestRaggedInPieces(SourceConformance):
    def source(self) -> Source:
        return InPieces("photos", rows=40, mean=20)


class TestIterable(StreamConformance):
    def source(self) -> Source:
        return IterableSource(given.Count(20), Form(), in_process=False)


class TestStatefulIterable(StreamConformance):
    def source(self) -> Source:
        return IterableSource(given.Stateful(20), Form(), in_process=False)


class Wrong(Source):
    """Returns integers although its schema says floats, and its blocks do not add up to its length."""

    @property
    def schema(self) -> dict[str, Column]:
        return {"x": Column(torch.float32, (2,))}

    def __len__(self) -> int:
        return 4

    def read(self, rows: Tensor) -> Batch:
        return {"x": torch.stack([rows, rows], dim=1)}

    def blocks(self) -> tuple[int, ...]:
        return (3,)

    def fingerprint(self) -> str:
        return "wrong"


class Broken(SourceConformance):
    def source(self) -> Source:
        return Wrong()


@pytest.mark.parametrize("broken", ["test_rows_are_what_the_schema_says", "test_its_blocks_sum_to_its_length"])
def test_a_source_that_breaks_a_rule_fails(broken: str) -> None:
    check: Any = getattr(Broken(), broken)
    with pytest.raises(AssertionError):
        check()
