"""Which rows are held out: those with the smallest hashes of seed and content.

The same row always goes to the same part, in every file, format and order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.order.keyed import keyed

Array = np.ndarray[Any, Any]
_EXACT_INT = 1 << 53  # float64 holds every whole number up to here
_MISSING = np.uint64(0x9E3779B97F4A7C15)
_WORD_STEP = np.uint64(0xD1B54A32D192ED03)
_WORDS_AT_ONCE = 1 << 20


def held_out(hashes: Array, share: float) -> Array:
    """bool [n]: the round(n * share) rows with the smallest hashes, 1 at least and n - 1 at most.

    Rows with equal hashes are copies of one row, so any of them can be taken.
    """
    if not 0 < share < 1:
        raise DataError(f"the share of rows to hold out must be between 0 and 1, got {share}")
    if len(hashes) < 2:
        raise DataError(f"holding out {share} of the rows needs 2 rows or more, got {len(hashes)}")
    count = min(max(1, round(len(hashes) * share)), len(hashes) - 1)
    last = np.partition(hashes, count - 1)[count - 1]
    taken: Array = hashes < last
    taken[np.flatnonzero(hashes == last)[: count - int(taken.sum())]] = True
    return taken


def held_out_groups(hashes: Array, share: float) -> Array:
    """bool [n]: about `share` of the rows, without splitting rows of equal hash; one group at least on each side."""
    groups, place, rows = np.unique(hashes, return_inverse=True, return_counts=True)
    if len(groups) < 2:
        raise DataError(f"holding out {share} of the rows by groups needs 2 groups or more, got {len(groups)}")
    count = int(np.searchsorted(np.cumsum(rows), len(hashes) * share, "left")) + 1
    taken: Array = place.reshape(-1) < min(max(1, count), len(groups) - 1)
    return taken


def held_out_latest(moments: Array, share: float) -> Array:
    """bool [n]: about `share` of the rows, with the largest values; rows of one value are on one side."""
    values, place, rows = np.unique(moments, return_inverse=True, return_counts=True)
    if len(values) < 2:
        raise DataError(f"holding out the latest {share} of the rows needs 2 different times or more, got {len(values)}")
    first = int(np.searchsorted(np.cumsum(rows), len(moments) * (1 - share), "left")) + 1
    taken: Array = place.reshape(-1) >= min(max(1, first), len(values) - 1)
    return taken


def hash_rows(columns: Mapping[str, Any], seed: int) -> Array:
    """uint64 [n]: hashes of the values and their column names. The order of the columns does not matter.

    Columns are arrays of numbers, dates, strings or objects (str, bytes, numbers, None). Equal values of different types have
    equal hashes: 3, 3.0 and np.uint8(3); a date and its midnight; None, NaN, NaT and empty text, which are the same in CSV.
    """
    return _combined({name: _hash_values(np.asanyarray(values), _key(seed, name)) for name, values in columns.items()})


def hash_batch(batch: Any, seed: int, columns: Sequence[str] | None = None) -> Array:
    """uint64 [n] of a pyarrow.RecordBatch (or Table): the same as `hash_rows` of the same values."""
    names = batch.schema.names if columns is None else columns
    return _combined({name: _hash_arrow(batch.column(batch.schema.names.index(name)), _key(seed, name)) for name in names})


def hash_records(columns: Mapping[str, Array], seed: int) -> Array:
    """uint64 [n] of rows of numbers of any shape, by their bytes: one or two passes over memory."""
    return _combined({name: _hash_content(np.ascontiguousarray(values), _key(seed, name)) for name, values in columns.items()})


def _hash_content(values: Array, key: np.uint64) -> Array:
    rows = values.reshape(len(values), -1).view(np.uint8)
    words = -(-rows.shape[1] // 8)
    steps = _mix(np.arange(1, words + 1, dtype=np.uint64) * _WORD_STEP + key) | np.uint64(1)
    hashed = np.empty(len(rows), dtype=np.uint64)
    at_once = max(1, _WORDS_AT_ONCE // words)
    for start in range(0, len(rows), at_once):
        piece = rows[start : start + at_once]
        padded = np.zeros((len(piece), words * 8), dtype=np.uint8)
        padded[:, : piece.shape[1]] = piece
        numbers = padded.view(np.uint64)
        numbers ^= numbers >> np.uint64(32)  # a product never moves high bits down
        hashed[start : start + at_once] = (numbers * steps).sum(axis=1, dtype=np.uint64)
    return _mix(hashed)


def hash_strings(strings: Iterable[str | bytes | None], seed: int) -> Array:
    """uint64 [n], one per string: paths of images, lines, documents."""
    return _hash_objects(list(strings), _key(seed, ""))


def _key(seed: int, name: str) -> np.uint64:
    return np.uint64(keyed(seed, "split", name))


def _combined(hashes: Mapping[str, Array]) -> Array:
    if not hashes:
        raise DataError("rows without columns can't be told apart: nothing to split by")
    total: Array | None = None
    for hashed in hashes.values():
        total = hashed.copy() if total is None else np.add(total, hashed, out=total)
    assert total is not None
    return _mix(total)


def _mix(values: Array) -> Array:
    """The last part of splitmix64, in place: a bijection of 64 bits; each input bit changes half of the output bits."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _keyed(values: Array, key: np.uint64, missing: Array | None = None) -> Array:
    """Mixed before and after adding the key, so that columns with equal numbers don't cancel each other."""
    mixed = _mix(_mix(values.copy()) + key)
    if missing is not None and missing.any():
        mixed[missing] = _mix(np.array([_MISSING ^ key]))[0]
    return mixed


def _hash_values(values: Array, key: np.uint64) -> Array:
    if values.ndim != 1:
        raise DataError(f"a column to hash must have one value per row; this one has shape {list(values.shape)}")
    missing = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    values = np.ma.getdata(values)
    kind = values.dtype.kind
    if kind in "buif":
        return _hash_numbers(values, key, missing)
    if kind in "Mm":
        return _hash_moments(values, key, missing)
    if kind in "USTO":
        return _hash_objects([value if ok else None for value, ok in _with_mask(values, missing)], key)
    raise DataError(f"values of type {values.dtype} can't be hashed")


def _with_mask(values: Array, missing: Array | None) -> Iterable[tuple[Any, bool]]:
    present = np.ones(len(values), bool) if missing is None else ~missing
    return zip(values.tolist(), present.tolist(), strict=True)


def _hash_numbers(values: Array, key: np.uint64, missing: Array | None = None) -> Array:
    """By their bits as float64, which are equal for equal numbers of all types. Larger integers by their own bits."""
    numbers = values.astype(np.float64)
    numbers += 0.0  # makes 0.0 of -0.0
    bits = numbers.view(np.uint64)
    if values.dtype.kind == "f":
        nan = np.isnan(numbers)
        missing = nan if missing is None else missing | nan
    elif values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        large = values > _EXACT_INT if values.dtype.kind == "u" else (values > _EXACT_INT) | (values < -_EXACT_INT)
        if large.any():
            bits[large] = ~values[large].astype(np.uint64)
    return _keyed(bits, key, missing)


def _hash_moments(values: Array, key: np.uint64, missing: Array | None = None) -> Array:
    """By microseconds, in every unit, and by the nanoseconds if there are any."""
    unset = np.isnat(values)
    moment = f"{values.dtype.kind}8[us]"
    whole = values.astype(moment)
    bits = whole.view(np.int64).astype(np.uint64)
    rest = (values - whole).astype(f"m8[{np.datetime_data(values.dtype)[0]}]").view(np.int64)
    finer = (rest != 0) & ~unset
    if finer.any():
        bits[finer] ^= _mix(rest[finer].astype(np.uint64))
    return _keyed(bits, key, unset if missing is None else missing | unset)


def _hash_objects(values: Sequence[Any], key: np.uint64) -> Array:
    """Strings and bytes by their bytes, numbers as numbers."""
    texts, others = [], []
    for row, value in enumerate(values):
        if isinstance(value, str):
            texts.append(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes):
            texts.append(value)
        else:
            texts.append(b"")
            if value is not None:
                others.append(row)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    hashed = _hash_bytes(np.frombuffer(b"".join(texts), np.uint8), lengths, key)
    for row in others:
        value = np.asarray(values[row])
        if value.dtype.kind not in "buifMm" or value.ndim:
            raise DataError(f"row {row}: a value of type {type(values[row]).__name__} can't be hashed")
        hashed[row] = _hash_values(value.reshape(1), key)[0]
    return hashed


def _hash_bytes(flat: Array, lengths: Array, key: np.uint64) -> Array:
    """Strings stored one after the other. Each is cut into words of 8 bytes, whose hashes, keyed by place, are summed."""
    hashed = np.empty(len(lengths), np.uint64)
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):  # in pieces, so that a column of long texts does not take many times its size
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + 8 * _WORDS_AT_ONCE, "right")))
        hashed[start:stop] = _hash_stretch(flat[before : int(ends[stop - 1])], lengths[start:stop])
        start = stop
    return _keyed(hashed, key, lengths == 0)


def _hash_stretch(flat: Array, lengths: Array) -> Array:
    words = (lengths + 7) // 8
    first_word = np.cumsum(words) - words
    starts = np.cumsum(lengths) - lengths
    padded = np.zeros(int(words.sum()) * 8, np.uint8)
    padded[np.arange(len(flat)) + np.repeat(first_word * 8 - starts, lengths)] = flat
    values = padded.view("<u8").astype(np.uint64)
    place = (np.arange(len(values)) - np.repeat(first_word, words)).astype(np.uint64)
    mixed = _mix(_mix(values) + (place + np.uint64(1)) * _WORD_STEP)
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    sums: Array = totals[first_word + words] - totals[first_word]
    sums += lengths.astype(np.uint64)  # "a" and "a\0" have the same words
    return sums


def _hash_arrow(column: Any, key: np.uint64) -> Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        pieces = [_hash_arrow(chunk, key) for chunk in column.chunks]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint64)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _hash_arrow(column.cast(kind.value_type), key)
    if pa.types.is_null(kind):
        return _hash_numbers(np.full(len(column), np.nan), key)
    if pa.types.is_nested(kind):
        raise DataError(f"a column of type {kind} can't be hashed")
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        column = column.cast(pa.large_binary())
    if any(is_text(column.type) for is_text in _texts()):
        return _hash_arrow_texts(column, key)
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us" if pa.types.is_date32(kind) else "ms"))
    elif pa.types.is_time(kind):
        column = column.cast(pa.time64("ns")).cast(pa.int64()).cast(pa.duration("ns"))
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if column.null_count:  # with nulls, to_numpy would turn integers into floats
        column = pc.fill_null(column, False if pa.types.is_boolean(kind) else pa.scalar(0, pa.int64()).cast(column.type))
    return _hash_values(np.ma.MaskedArray(column.to_numpy(zero_copy_only=False), missing), key)


def _texts() -> tuple[Any, ...]:
    from pyarrow import types

    return types.is_string, types.is_binary, types.is_large_string, types.is_large_binary


def _hash_arrow_texts(column: Any, key: np.uint64) -> Array:
    from pyarrow import types

    wide = types.is_large_string(column.type) or types.is_large_binary(column.type)
    _, places, content = column.buffers()
    offsets = np.frombuffer(places or bytes(8), np.int64 if wide else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    if column.null_count and lengths[column.is_null().to_numpy(zero_copy_only=False)].any():  # bytes stored under a null
        return _hash_objects(column.to_pylist(), key)
    flat = np.frombuffer(content or b"", np.uint8)
    return _hash_bytes(flat[int(offsets[0]) : int(offsets[-1])], lengths, key)
