"""Conformance suite for a source: subclass it in a test to check that every tier can serve it.

class TestMine(SourceConformance):
    def source(self):
        return Mine(...)

Use at most a few hundred rows: all are read, more than once.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.cache.records import START
from flatout.data.data import Data
from flatout.data.feeds.contract import FeedOptions
from flatout.data.feeds.feed import feed
from flatout.data.feeds.streamed import IterableFeed
from flatout.data.offers import Go, Skip, StreamReader
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Source, apply

_FEW = 16
_SAMPLES = _BATCH = 4
_SEED = 3


class _Declared:
    """Rules for indexed sources and streams alike."""

    def source(self) -> Source:
        """A new source with the same content each time."""
        raise NotImplementedError("override source(): return the source to test")

    def another(self) -> Source | None:
        """A source with different rows, if easy to make: its fingerprint must differ."""
        return None

    def test_the_fingerprint_is_that_of_the_content(self) -> None:
        source, another = self.source(), self.another()
        assert source.fingerprint() and source.fingerprint() == source.fingerprint()
        assert self.source().fingerprint() == source.fingerprint(), (
            "two sources with the same content have different fingerprints"
        )
        assert another is None or another.fingerprint() != source.fingerprint(), "different content has the same fingerprint"

    def test_it_says_what_it_is_in_the_types_that_are_declared(self) -> None:
        source = self.source()
        assert source.schema and all(column.row_bytes >= 0 for column in source.schema.values())
        flags = (source.in_memory, source.varies, source.by_visit, source.alone, source.shapes_vary)
        assert all(isinstance(flag, bool) for flag in flags), flags
        assert source.tokens_per_row > 0 and isinstance(source.made_by, str)
        assert source.workers is None or source.workers >= 0
        assert source.bad is None or source.bad.count >= 0
        assert all(isinstance(why, str) for why in source.degraded)
        assert source.epoch_rows is None or source.epoch_rows == len(source)


class SourceConformance(_Declared):
    """Rows by index."""

    pickles: ClassVar[bool] = False  # whether it must be picklable for other processes

    def test_its_blocks_sum_to_its_length(self) -> None:
        source = self.source()
        assert len(source) > 0 and sum(source.blocks()) == len(source)

    def test_rows_are_what_the_schema_says(self) -> None:
        source = self.source()
        _agrees(source, source.read(_some(source)), len(_some(source)))
        _agrees(source, source.read(torch.zeros(1, dtype=torch.int64)), 1)

    def test_any_rows_in_any_order_are_the_same_rows(self) -> None:
        source = self.source()
        rows = _some(source)
        if not source.varies:
            _same(source, source.read(rows), rows, _each(source, rows))
            _same(source, source.read(rows.flip(0)), rows.flip(0), _each(source, rows))

    def test_a_row_of_one_visit_is_the_same_each_time(self) -> None:
        source = self.source()
        rows = _some(source)
        visits = torch.arange(len(rows))
        if not source.alone:
            first, again = (source.read_visits(rows, visits) for _ in range(2))
            assert all(torch.equal(first[name], again[name]) for name in first)

    def test_rows_can_be_written_to_where_the_reader_says(self) -> None:
        source = self.source()
        rows = _some(source)
        if source.varies:
            return
        expected = source.read(rows)
        into = {name: torch.zeros_like(column) for name, column in expected.items()}
        source.read_into(rows, into)
        assert all(torch.equal(into[name], expected[name]) for name in expected), "read_into and read give different values"
        room: dict[str, Tensor] = {}

        def take(name: str, length: int) -> Tensor:
            column = source.schema[name]
            room[name] = torch.zeros((length, *column.shape), dtype=column.dtype)
            return room[name]

        given = source.read_with(rows, take)
        assert room.keys() == expected.keys() and all(torch.equal(room[name], expected[name]) for name in expected)
        assert all(given[name].data_ptr() == room[name].data_ptr() for name in room), "the result is not in the given memory"

    def test_several_threads_may_read_at_a_time(self) -> None:
        source = self.source()
        if source.alone or source.varies:
            return
        rows = _some(source)
        expected = _each(source, rows)
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: source.read(rows), range(8)):
                _same(source, found, rows, expected)

    def test_the_targets_of_all_rows_can_be_had(self) -> None:
        source = self.source()
        if "y" in source.schema and not source.varies:
            assert torch.equal(source.column("y"), source.read(torch.arange(len(source)))["y"])

    def test_rows_picked_from_all_of_them_are_those_that_are_read(self) -> None:
        source = self.source()
        if source.varies:
            return
        rows = _some(source)
        stored = source.stored()
        held = sum(column.nbytes for column in stored.values())
        assert abs(source.stored_bytes - held) <= 0.02 * held + 8 * len(source), (
            f"rows have {held} bytes, stored_bytes says {source.stored_bytes}"
        )
        _same(source, source.gather(stored, rows), rows, _each(source, rows))

    def test_what_is_compact_becomes_the_same_rows(self) -> None:
        source = self.source()
        narrow, widen = source.compact()
        if source.varies:
            return
        rows = _some(source)
        assert len(narrow) == len(source)
        wide = apply(widen, narrow.read(rows), Keys(0, torch.zeros_like(rows), rows)) if widen else narrow.read(rows)
        _same(source, wide, rows, _each(source, rows))

    def test_every_tier_serves_the_same_batches(self) -> None:
        source = self.source()
        if source.varies:
            return
        served = {tier: self._batches(tier) for tier in ("resident", "pinned", "streamed")}
        if source.shapes_vary:
            for batches in served.values():
                for here, there in zip(batches, served["resident"], strict=True):
                    assert all(torch.equal(here[name], there[name]) for name in there)
            return
        order, each = Data(train=source).sampler(_SEED), _each(source, torch.arange(len(source)))
        for batches in served.values():
            for number, batch in enumerate(batches):
                _same(source, batch, order.rows(number * _BATCH, (number + 1) * _BATCH), each)

    def test_what_it_offers_beyond_rows_is_true(self) -> None:
        source = self.source()
        rows = _some(source)
        assert source.stream is None, "test a stream with StreamConformance"
        ragged = [name for name, column in source.schema.items() if column.ragged is not None]
        if source.piece_rows is not None:
            assert source.piece_rows >= 1 and (not ragged or source.sizes is not None)
        if source.sizes is not None:
            assert len(source.sizes) == len(source) and ragged
            found = [len(source.read(row.view(1))[ragged[0]]) for row in rows]
            assert source.row_sizes(rows).tolist() == found, "row_sizes differs from the rows that read returns"
        stand_ins = source.stand_ins(rows)
        assert stand_ins is None or (stand_ins.dtype == torch.bool and len(stand_ins) == len(rows))
        if source.placed is not None:
            assert source.sizes is not None and torch.equal(source.placed.shown(rows) != rows, _mask(stand_ins, rows))
        if source.shapes_vary:
            assert source.by_length is not None and source.batch_tokens is not None
        count, columns = source.typical_batch(8)
        assert 1 <= count <= 8 and columns.keys() == source.schema.keys()
        assert 0 < source.rows_per_batch(8) <= 8 and 1 <= source.stored_rows(8) <= 8

    def test_rows_of_like_length_come_in_batches(self) -> None:
        source = self.source()
        if (by_length := source.by_length) is None or source.batch_tokens is None:
            return
        assert len(by_length.lengths) == len(source) and int(by_length.lengths.min()) >= 1
        plan, stored = by_length.buckets(8), by_length.stored()
        for epoch in range(2):
            planned = plan.plan(epoch)
            assert len(planned) == plan.epoch_batches
            assert torch.cat([batch.rows for batch in planned]).sort().values.tolist() == list(range(len(source)))
            for batch in planned:
                assert int(by_length.lengths[batch.rows].max()) <= batch.length
                assert (len(batch.rows), batch.length) in plan.shapes
                assert by_length.padded(stored, batch.rows, batch.length)["x"].shape == (len(batch.rows), batch.length)

    def test_a_copy_in_another_process_would_read_the_same(self) -> None:
        if not self.pickles:
            return
        source = self.source()
        rows = _some(source)
        copy: Source = pickle.loads(pickle.dumps(source))
        assert copy.fingerprint() == source.fingerprint() and copy.schema == source.schema
        _same(copy, copy.read(rows), rows, _each(source, rows))

    def test_it_can_be_read_after_it_was_released(self) -> None:
        source = self.source()
        source.release()
        _agrees(source, source.read(_some(source)), len(_some(source)))

    def _batches(self, tier: str) -> list[Batch]:
        served = feed(Data(train=self.source()), tier, _BATCH, "cpu", seed=_SEED)
        try:
            return [served.next(served.next_size(_BATCH)) for _ in range(4)]
        finally:
            served.release()


class StreamConformance(_Declared):
    """A stream of samples. `source` returns one that starts from the beginning."""

    def test_it_is_a_stream_and_has_no_rows_by_number(self) -> None:
        source = self.source()
        assert source.stream is not None and source.stream.name
        assert source.stream.length == source.epoch_rows
        try:
            source.read(torch.zeros(1, dtype=torch.int64))
        except DataError:
            return
        raise AssertionError("a stream must not return rows by index")

    def test_samples_are_what_the_schema_says(self) -> None:
        source = self.source()
        reader = self._reader(source)
        try:
            taken, columns = reader.take(_SAMPLES)
            _agrees(source, {name: column[: len(taken.places)] for name, column in columns.items()}, _SAMPLES)
            assert list(taken.places) == list(range(_SAMPLES)) and list(taken.passes) == [0] * _SAMPLES
        finally:
            reader.close()

    def test_another_reader_goes_on_from_where_one_was(self) -> None:
        whole = self._taken(2 * _SAMPLES)
        for begin in (Skip(_SAMPLES), Go(0, _SAMPLES)):
            rest = self._taken(_SAMPLES, begin)
            assert all(torch.equal(rest[name], whole[name][_SAMPLES:]) for name in whole), f"after {begin}"

    def test_a_feed_goes_on_from_its_state(self) -> None:
        first = IterableFeed(self.source(), FeedOptions(_SAMPLES, torch.device("cpu"), seed=1))
        try:
            first.next()
            state = first.state_dict()
            expected = first.next()
        finally:
            first.close()
        second = IterableFeed(self.source(), FeedOptions(_SAMPLES, torch.device("cpu"), seed=1))
        try:
            second.load_state_dict(state)
            found = second.next()
        finally:
            second.close()
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    def _reader(self, source: Source) -> StreamReader:
        assert source.stream is not None
        return source.stream.reader(2 * _SAMPLES)

    def _taken(self, samples: int, begin: Go | Skip | None = None) -> Batch:
        reader = self._reader(self.source())
        try:
            if begin is not None:
                reader.begin(begin)
            taken, columns = reader.take(samples)
            return {name: column[: len(taken.places)].clone() for name, column in columns.items()}
        finally:
            reader.close()


def _some(source: Source) -> Tensor:
    """Rows in random order, one of them twice, including the last."""
    rows = torch.randperm(len(source), generator=torch.Generator().manual_seed(7))[:_FEW]
    return torch.cat([rows, rows[:1], torch.tensor([len(source) - 1])])


def _each(source: Source, rows: Tensor) -> dict[int, Batch]:
    return {int(row): source.read(row.view(1)) for row in rows}


def _mask(stand_ins: Tensor | None, rows: Tensor) -> Tensor:
    return torch.zeros(len(rows), dtype=torch.bool) if stand_ins is None else stand_ins


def _agrees(source: Source, batch: Mapping[str, Tensor], rows: int) -> None:
    assert batch.keys() == source.schema.keys(), f"read returned {sorted(batch)}, the schema has {sorted(source.schema)}"
    for name, column in source.schema.items():
        found = batch[name]
        assert found.device.type == "cpu" and found.dtype == column.dtype, (
            f"{name}: got {found.dtype} on {found.device}, expected {column.dtype} on the CPU"
        )
        if column.ragged is None:
            assert tuple(found.shape) == (rows, *column.shape), f"{name}: got shape {list(found.shape)}"
        else:
            assert found.dim() == 1 and START in batch, f"{name} is ragged: it must be flat, with a column {START!r}"


def _same(source: Source, batch: Mapping[str, Tensor], rows: Tensor, each: Mapping[int, Batch]) -> None:
    assert batch.keys() == source.schema.keys()
    for name, column in source.schema.items():
        for place, row in enumerate(rows.tolist()):
            alone = each[row][name]
            if column.ragged is not None:
                begin = int(batch[START][place])
                assert torch.equal(batch[name][begin : begin + len(alone)], alone), f"{name} of row {row}"
            elif not (name == START and any(one.ragged is not None for one in source.schema.values())):
                assert torch.equal(batch[name][place], alone[0]), f"{name} of row {row}"
