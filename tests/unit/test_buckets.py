"""Rows of differing lengths: every row once an epoch, within the budget, little padding, the same plan for the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatout.base.errors import DataError, UsageError
from flatout.data.sources.texts.buckets import Buckets
from flatout.data.sources.texts.packing import IGNORED, as_tensor
from flatout.data.sources.texts.sequence_source import SequenceSource
from flatout.data.sources.texts.sequences import sequences


def some_lengths(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).lognormal(3.5, 0.8, count).astype(np.int64).clip(1, 500)


@pytest.mark.parametrize(
    ("rows", "multiple", "mix", "most"), [(1, 8, None, None), (7, 8, 3, None), (999, 16, None, 20), (5000, 1, 4, None)]
)
def test_every_row_once_within_the_budget_in_constant_shapes(
    rows: int, multiple: int, mix: int | None, most: int | None
) -> None:
    lengths = some_lengths(rows)
    buckets = Buckets(lengths, 1024, 3, multiple=multiple, mix=mix, rows=most)
    shapes = []
    for epoch in range(3):
        plan = buckets.plan(epoch)
        assert len(plan) == buckets.epoch_batches == len(buckets.batches(epoch))
        assert sorted(torch.cat([batch.rows for batch in plan]).tolist()) == list(range(rows))
        for batch in plan:
            assert batch.rows.dtype == torch.int64 and len(batch.rows) <= (most or rows)
            assert batch.length % multiple == 0 and batch.length >= lengths[batch.rows].max()
            assert len(batch.rows) * batch.length <= 1024
        shapes.append(sorted((len(batch.rows), batch.length) for batch in plan))
        padded = sum(len(batch.rows) * batch.length for batch in plan)
        assert buckets.padding == pytest.approx(1 - lengths.sum() / padded)
    assert shapes[0] == shapes[1] == shapes[2] and set(shapes[0]) == set(buckets.shapes)
    assert buckets.epoch_rows == rows


def test_the_plan_is_a_function_of_seed_epoch_and_lengths_alone() -> None:
    lengths = some_lengths(2000)
    one, same = Buckets(lengths, 2048, 5), Buckets(torch.from_numpy(lengths), 2048, 5)
    one.plan(9)  # what was asked before makes no difference
    for epoch in (0, 1, 7):
        assert all(torch.equal(a, b) for a, b in zip(one.batches(epoch), same.batches(epoch), strict=True))
    mates = [{frozenset(batch.tolist()) for batch in plan} for plan in (one.batches(0), one.batches(1))]
    assert not mates[0] & mates[1]  # other rows meet in the next epoch
    assert {frozenset(batch.tolist()) for batch in Buckets(lengths, 2048, 6).batches(0)} != mates[0]
    order = [int(lengths[batch].max()) for batch in one.batches(0)]
    assert order != sorted(order) and order != sorted(order, reverse=True)  # long batches are not all at one end


def sorted_padding(lengths: list[int], tokens: int) -> float:
    """Rows from the longest on, batch after batch: as little padding as batches of neighbours can have."""
    left, padded = sorted(lengths, reverse=True), 0
    while left:
        length = -(-left[0] // 8) * 8
        padded += length * len(left[: tokens // length])
        left = left[tokens // length :]
    return 1 - sum(lengths) / padded


def test_padding_is_little() -> None:
    for rows, tokens, more in ((300, 2048, 0.1), (20_000, 16_384, 0.04), (20_000, 4096, 0.02)):
        lengths = some_lengths(rows)
        least = sorted_padding(lengths.tolist(), tokens)
        assert Buckets(lengths, tokens, mix=1).padding == pytest.approx(least)
        assert least < Buckets(lengths, tokens).padding < least + more
        assert Buckets(lengths, tokens, mix=10_000).padding > 0.5  # all in one bucket


def test_rows_that_do_not_fit_are_named() -> None:
    with pytest.raises(
        DataError, match="row 2 has 1021 tokens, 1024 when padded to a multiple of 8, and a batch may have 1020"
    ):
        Buckets([5, 6, 1021, 7], 1020)
    with pytest.raises(DataError, match="row 1 has 0 tokens"):
        Buckets([5, 0], 100)
    with pytest.raises(DataError, match="one or more"):
        Buckets([], 100)
    with pytest.raises(UsageError, match="1 or more"):
        Buckets([5], 0)


def plain_batch(rows: list[list[int]], wanted: list[int], length: int, pad: int) -> dict[str, list[list[int]]]:
    x = [rows[row] + [pad] * (length - len(rows[row])) for row in wanted]
    y = [rows[row][1:] + [IGNORED] * (length - len(rows[row]) + 1) for row in wanted]
    return {"x": x, "y": y}


@pytest.mark.parametrize("vocabulary", [100, 60_000, 70_000])
def test_padded_rows_are_those_of_plain_python(vocabulary: int) -> None:
    numbers = np.random.default_rng(0)
    rows = [numbers.integers(0, vocabulary, length).tolist() for length in some_lengths(50).clip(1, 40)]
    rows[3][0] = vocabulary - 1
    data = sequences(rows, vocabulary=vocabulary, pad=7)
    source = data.train
    assert isinstance(source, SequenceSource) and data.vocabulary == vocabulary and data.classes is None
    longest = max(map(len, rows))
    everything = source.read(torch.arange(50))
    expected = plain_batch(rows, list(range(50)), longest, 7)
    assert everything["x"].tolist() == expected["x"] and everything["y"].tolist() == expected["y"]
    assert everything["length"].tolist() == list(map(len, rows))
    assert {name: (c.dtype, c.shape) for name, c in source.schema.items()} == {
        name: (c.dtype, tuple(c.shape[1:])) for name, c in everything.items()
    }
    stored = source.stored()
    assert stored["tokens"].element_size() == {100: 1, 60_000: 2, 70_000: 4}[vocabulary]
    assert source.stored_bytes == sum(tensor.nbytes for tensor in stored.values())
    for planned in Buckets(source.lengths, 256).plan(0):
        batch = source.padded(stored, planned.rows, planned.length)
        expected = plain_batch(rows, planned.rows.tolist(), planned.length, 7)
        assert batch["x"].tolist() == expected["x"] and batch["y"].tolist() == expected["y"]


def test_labels_and_a_holdout_that_does_not_depend_on_the_order() -> None:
    rows = [[number, number + 1, *[5] * (number % 7)] for number in range(100)]
    words = ["even" if number % 2 == 0 else "odd" for number in range(100)]
    data = sequences(rows, words, holdout=0.2)
    assert data.labels == ("even", "odd") and data.classes == 2 and data.validation is not None
    assert (len(data.train), len(data.validation)) == (80, 20)
    back = sequences(rows[::-1], words[::-1], holdout=0.2)
    assert back.validation is not None

    def held(source: Any) -> dict[int, int]:
        batch = source.read(torch.arange(len(source)))
        return dict(zip(batch["x"][:, 0].tolist(), batch["y"].tolist(), strict=True))

    assert held(data.validation) == held(back.validation)
    assert all(label == number % 2 for number, label in {**held(data.train), **held(data.validation)}.items())
    scored = sequences(rows, np.linspace(0, 1, 100))
    assert scored.classes is None and scored.train.schema["y"].dtype == torch.float32
    apart = sequences(rows[:90], words[:90], validation=(rows[90:], words[90:]))
    assert apart.validation is not None and held(apart.validation) == {n: n % 2 for n in range(90, 100)}
    assert data.fingerprint() != apart.fingerprint()


def test_json_lines_of_ids_and_of_text(tmp_path: Path) -> None:
    ids, words = tmp_path / "ids.jsonl", tmp_path / "words.jsonl"
    ids.write_text("".join(json.dumps({"tokens": [n, 2], "score": n / 2}) + "\n" for n in range(5)))
    data = sequences(ids, field="tokens", label="score")
    assert data.train.read(torch.arange(5))["y"].tolist() == [0, 0.5, 1, 1.5, 2] and data.vocabulary == 5
    words.write_text('{"text": "ab", "kind": "x"}\n{"text": "č", "kind": "y"}\n')
    data = sequences([words], label="kind")
    batch = data.train.read(torch.arange(2))
    assert data.vocabulary == 256 and batch["x"].tolist() == [list(b"ab"), list("č".encode())]
    assert batch["y"].tolist() == [0, 1] and data.labels == ("x", "y")


def test_what_is_wrong_with_sequences_is_said(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text(
        '{"text": "ab", "kind": "x"}\n{"text": [], "kind": "x"}\n{"text": [1], "sort": 2}\n{"text": [1], "kind": [2]}\n'
    )
    (tmp_path / "rows.txt").write_text("ab")
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (([[1, 2], []],), {}, "row 1: no tokens in it"),
        (([[1, 2], [0.5]],), {}, r"row 1: expected a sequence of token ids, got float64 of shape \[1\]"),
        (([[1, 2], [[1], [2, 3]]],), {}, "row 1: not a sequence of token ids"),
        (([],), {}, "no rows"),
        (([[1, -2]],), {}, "0 or more, found -2"),
        (([[1, 9]],), {"vocabulary": 9}, "0 to 8, found 9"),
        (([[1, 2], [3]], [1]), {}, "y has 1 rows for 2 sequences"),
        (([[1, 2], [3]], [0, 5]), {"classes": 2}, "row 1 has 5"),
        (([[1, 2]], ["a"]), {"validation": ([[1]], ["b"])}, "label 'b' in row 0, which no training row has"),
        (([[1, 2]], ["a"]), {"validation": [[1]]}, "for neither"),
        (([[1, 2]],), {"pad": 9}, "pad is a token id, 0 to 2, got 9"),
        ((lines,), {"label": "kind"}, r"rows\.jsonl line 2: no tokens"),
        ((lines, [1]), {}, "name its field with label"),
        ((tmp_path / "rows.txt",), {}, r"rows\.txt: sequences are read from JSON lines"),
    ]
    for given, options, message in cases:
        with pytest.raises(DataError, match=message):
            sequences(*given, **options)
    kept = sequences(lines, label="kind", on_bad="skip")
    assert len(kept.train) == 1 and kept.notes[0].startswith("3 bad samples were left out: ")
    skipped = sequences([[1, 2], [], [3]], [0, 1, 1], on_bad="skip")
    assert skipped.train.read(torch.arange(2))["y"].tolist() == [0, 1]
    with pytest.raises(UsageError, match="on_bad"):
        sequences([[1]], on_bad="ignore")


def test_the_last_row_does_not_read_past_the_end() -> None:
    source = SequenceSource(as_tensor(np.array([1, 2, 3, 4], np.uint8)), torch.tensor([1, 3]))
    batch = source.padded(source.stored(), torch.tensor([1]), 8)
    assert batch["x"].tolist() == [[2, 3, 4, 0, 0, 0, 0, 0]]
    assert batch["y"].tolist() == [[3, 4, *[IGNORED] * 6]]
