"""Packed documents: streams over many parts, and what becomes of the seams, against plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatout.base.errors import DataError
from flatout.data import text
from flatout.data.order.keyed import Keys
from flatout.data.source import describe_all, hash_tensors
from flatout.data.sources.texts import tokens
from flatout.data.sources.texts.packing import IGNORED, TokenStream, cut_starts, document_starts, seams
from flatout.data.sources.texts.text import TextSource
from flatout.data.sources.texts.tokens import TokenFile, token_parts

NOBODY = Keys(0, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))


def some_parts(folder: Path, vocabulary: int, kinds: list[str]) -> tuple[list[TokenFile], list[int]]:
    """Files of several types; those of 40 tokens or more are mapped, the others are read."""
    numbers = np.random.default_rng(vocabulary)
    files, everything = [], []
    for number, kind in enumerate(kinds):
        ids = numbers.integers(0, min(vocabulary, np.iinfo(kind).max + 1), int(numbers.integers(0, 90)))
        ids[:1] = vocabulary - 1 if vocabulary - 1 <= np.iinfo(kind).max else 0
        np.save(folder / f"{number}.npy", ids.astype(kind))
        files.append(folder / f"{number}.npy")
        everything += ids.tolist()
    return token_parts(files, None), everything


def plain(ids: list[int], lengths: list[int], begin: int, window: int, boundaries: str) -> dict[str, list[int]]:
    """One row, token by token."""
    owner = [number for number, length in enumerate(lengths) for _ in range(length)]
    row: dict[str, list[int]] = {"x": [], "y": [], "documents": [], "positions": []}
    seen, position = 0, 0
    for place in range(begin, begin + window):
        if place > begin and owner[place] != owner[place - 1]:
            seen, position = seen + 1, 0
        row["x"].append(ids[place])
        row["y"].append(IGNORED if boundaries != "none" and owner[place + 1] != owner[place] else ids[place + 1])
        row["documents"].append(seen)
        row["positions"].append(position)
        position += 1
    return row if boundaries == "attention" else {"x": row["x"], "y": row["y"]}


@pytest.mark.parametrize("vocabulary", [200, 60_000, 70_000])
def test_a_stream_over_files_of_many_types_is_the_files_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: int
) -> None:
    monkeypatch.setattr(tokens, "_MAP_BYTES", 80)
    parts, everything = some_parts(tmp_path, vocabulary, ["int64", "uint16", "uint8", "uint32", "int32", "uint16", "uint8"])
    assert any(part.pages is not None for part in parts) and any(part.pages is None for part in parts)
    stream = TokenStream(parts, vocabulary)
    assert len(stream) == len(everything) and stream.nbytes == len(everything) * {200: 1, 60_000: 2, 70_000: 4}[vocabulary]
    assert stream.slice(0, len(stream)).tolist() == everything
    for length in (1, 7, 100, len(everything)):
        begins = np.random.default_rng(1).integers(0, len(everything) - length + 1, 40)
        assert stream.windows(begins, length).tolist() == [everything[b : b + length] for b in begins]
    for start, stop in ((0, 30), (50, 51), (17, len(everything) - 3)):
        assert stream.cut(start, stop).slice(0, stop - start).tolist() == everything[start:stop]
    assert stream.fingerprint() == hash_tensors({"tokens": stream.tensor()})
    assert stream.cut(11, 99).fingerprint() == hash_tensors({"tokens": stream.tensor()[11:99]})


@pytest.mark.parametrize("kind", ["uint16", "int64"])
def test_large_streams_are_hashed_by_the_pieces_that_tensors_are(tmp_path: Path, kind: str) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 17_000_001).astype(kind)  # 34 MB in 2 bytes a token
    ids.tofile(tmp_path / "t.bin")
    stream = TokenStream(token_parts([tmp_path / "t.bin"], kind), 50_000)
    expected = torch.from_numpy(ids.astype(np.uint16).view(np.int16))
    assert stream.fingerprint() == hash_tensors({"tokens": expected})
    assert stream.cut(1, 17_000_000).fingerprint() == hash_tensors({"tokens": expected[1:-1]})
    begins = np.array([0, 16_999_990, 5])
    assert (stream.windows(begins, 11) == np.stack([ids[b : b + 11] for b in begins])).all()


@pytest.mark.parametrize("boundaries", ["none", "loss", "attention"])
@pytest.mark.parametrize("stride", [1, 5, 12])
def test_rows_are_those_of_plain_python_from_every_side(boundaries: str, stride: int) -> None:
    numbers = np.random.default_rng(stride)
    lengths = [int(length) for length in numbers.integers(1, 30, 40)] + [1, 1, 1, 50]
    ids = numbers.integers(0, 60_000, sum(lengths))
    stream, starts = TokenStream([TokenFile("ids", ids)], 60_000), document_starts(lengths)
    source = TextSource(stream, 12, stride, boundaries, starts)
    rows = torch.arange(len(source)).flip(0)
    expected = [plain(ids.tolist(), lengths, int(row) * stride, 12, boundaries) for row in rows]
    read = source.read(rows)
    assert {name: column.tolist() for name, column in read.items()} == {
        name: [row[name] for row in expected] for name in expected[0]
    }
    assert {name: (column.dtype, tuple(column.shape[1:])) for name, column in read.items()} == {
        name: (column.dtype, column.shape) for name, column in source.schema.items()
    }
    assert all(column.is_contiguous() for column in read.values())
    narrow, (split,) = source.compact()
    assert describe_all([split], narrow.schema) == source.schema
    assert sum(column.row_bytes for column in narrow.schema.values()) == 13 * (2 if boundaries == "none" else 3)
    ways = {
        "resident": source.gather(source.stored(), rows),
        "compact": split(narrow.read(rows), NOBODY),
        "compact resident": split(narrow.gather(narrow.stored(), rows), NOBODY),
    }
    for way, batch in ways.items():
        assert list(batch) == list(read), way
        assert all(torch.equal(batch[name], read[name]) and batch[name].dtype == read[name].dtype for name in read), way
    assert source.stored_bytes == sum(tensor.nbytes for tensor in source.stored().values())


def test_documents_without_tokens_begin_nowhere() -> None:
    assert document_starts([0, 3, 0, 0, 2, 0]).tolist() == [0, 3]
    starts = np.array([0, 3, 7, 9])
    assert cut_starts(starts, 3, 9).tolist() == [0, 4]
    assert cut_starts(starts, 4, 8).tolist() == [0, 3]
    assert seams(starts, np.array([3, 1]), 5).tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 0, 0]]


def test_seams_of_files_and_of_end_of_text_tokens(tmp_path: Path) -> None:
    for number, words in enumerate(("abcdef", "ghi", "jklmnop")):
        (tmp_path / f"{number}.txt").write_text(words)
    data = text(str(tmp_path / "*.txt"), window=5, stride=1, holdout=0, boundaries="loss")
    assert data.alphabet == "abcdefghijklmnop"
    lost = (data.train.read(torch.arange(len(data.train)))["y"] == IGNORED).nonzero()
    assert sorted({int(row) + int(place) for row, place in lost}) == [5, 8]  # the targets g and j
    np.array([1, 2, 9, 3, 9, 9, 4, 5], np.uint16).tofile(tmp_path / "a.bin")
    np.array([6, 7, 9, 8], np.uint16).tofile(tmp_path / "b.bin")
    both = text([tmp_path / "a.bin", tmp_path / "b.bin"], window=11, holdout=0, boundaries="attention", eot=9)
    row = both.train.read(torch.tensor([0]))
    assert row["x"][0].tolist() == [1, 2, 9, 3, 9, 9, 4, 5, 6, 7, 9]
    assert row["y"][0].tolist() == [2, 9, IGNORED, 9, IGNORED, IGNORED, 5, IGNORED, 7, 9, IGNORED]
    assert row["documents"][0].tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 4, 4, 4]
    assert row["positions"][0].tolist() == [0, 1, 2, 0, 1, 0, 0, 1, 0, 1, 2]
    assert list(both.schema()) == ["x", "y", "documents", "positions"]
    with pytest.raises(DataError, match=r"a\.bin is not known: set eot to the id"):
        text(tmp_path / "a.bin", window=4, boundaries="loss")
    with pytest.raises(DataError, match="'none', 'loss' or 'attention', got 'los'; did you mean 'loss'"):
        text(tmp_path / "a.bin", window=4, boundaries="los")


def test_what_seams_mean_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcabc" * 5)
    (tmp_path / "b.txt").write_text("abcabc" * 5)
    (tmp_path / "whole.txt").write_text("abcabc" * 10)
    files: dict[str, Any] = {"window": 6, "holdout": 0}
    two, one = [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "whole.txt"
    assert text(two, **files).fingerprint() == text(one, **files).fingerprint()
    seen = [
        text(paths, boundaries=kind, **files).fingerprint() for paths in (two, one) for kind in ("none", "loss", "attention")
    ]
    assert len(set(seen)) == 5  # without boundaries the two are the same data
