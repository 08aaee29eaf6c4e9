"""Checks of tensors that a client prepared itself. An id outside of an embedding would fail a whole batch, or a device."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from flatout.data.fitted import Fitted
from flatout.data.fitted.array_rows import ArrayHost
from flatout.data.fitted.table_features import TableFeatures
from flatout.data.fitted.token_rows import SequenceHost, TextHost
from flatout.serving.asking import Array
from flatout.serving.front.refusals import Refusal

_HIGHEST = 1 << 31

TensorCheck = Callable[[Array], None]
BytesCheck = Callable[[bytes, int], bool]


def tensor_checks(fitted: Fitted) -> dict[str, TensorCheck]:
    """By the names of the program's inputs."""
    host = fitted.host
    if isinstance(host, TextHost):
        longest = {name: _most_columns(name, host.window) for name in ("documents", "positions")}
        return {"x": _both(_most_columns("x", host.window), _ids("x", host.code.vocabulary)), **longest}
    if isinstance(host, SequenceHost):
        return {"x": _ids("x", host.code.vocabulary), "length": _lengths(host.longest)}
    if isinstance(host, ArrayHost):
        found: dict[str, TensorCheck] = {name: _finite(name) for name, (dtype, _) in host.columns.items() if "float" in dtype}
        return {**found, "x": _ids("x", host.vocabulary)} if host.vocabulary is not None else found
    steps = [step for step in fitted.device.steps if isinstance(step, TableFeatures)]
    if steps and steps[0].categories:
        return {"ids": _cardinalities([(column.name, column.cardinality) for column in steps[0].categories])}
    return {}


def row_checks(fitted: Fitted) -> dict[str, BytesCheck]:
    """Quick ones, for one row that begins at a place of a body: False if a TensorCheck has to look."""
    steps = [step for step in fitted.device.steps if isinstance(step, TableFeatures)]
    if not steps or not steps[0].categories or isinstance(fitted.host, TextHost | SequenceHost | ArrayHost):
        return {}
    return {"ids": ids_in_one_sum([column.cardinality for column in steps[0].categories])}


def ids_in_one_sum(cardinalities: list[int]) -> BytesCheck:
    """All ids as one long number of 32 bits each: an id that is too large reaches its highest bit when the rest is added."""
    nbytes = 4 * len(cardinalities)
    rest = int.from_bytes(b"".join((_HIGHEST - most).to_bytes(4, "little") for most in cardinalities), "little")
    highest = int.from_bytes(_HIGHEST.to_bytes(4, "little") * len(cardinalities), "little")

    def check(body: bytes, start: int) -> bool:
        ids = int.from_bytes(body[start : start + nbytes], "little")
        return not (ids | ids + rest) & highest  # ids below 0 have the bit already

    return check


def _both(first: TensorCheck, second: TensorCheck) -> TensorCheck:
    def check(array: Array) -> None:
        first(array)
        second(array)

    return check


def _ids(name: str, vocabulary: int) -> TensorCheck:
    def check(array: Array) -> None:
        if b"\1" in (_unsigned(array) >= vocabulary).tobytes():
            wrong = array[(array < 0) | (array >= vocabulary)]
            raise Refusal(400, f"input {name!r}: token ids are 0 to {vocabulary - 1}, got {wrong[0]}")

    return check


def _unsigned(array: Array) -> Array:
    """Numbers below 0 become the largest ones, so that one comparison finds both."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "i" else array


def _most_columns(name: str, most: int) -> TensorCheck:
    def check(array: Array) -> None:
        if not 0 < array.shape[1] <= most:
            raise Refusal(400, f"input {name!r}: a row is 1 to {most} tokens, got {array.shape[1]}")

    return check


def _lengths(longest: int) -> TensorCheck:
    def check(array: Array) -> None:
        if array.size and (array.min() < 1 or array.max() > longest):
            wrong = array[(array < 1) | (array > longest)]
            raise Refusal(400, f"input 'length': a row has 1 to {longest} tokens, got {wrong[0]}")

    return check


def _finite(name: str) -> TensorCheck:
    def check(array: Array) -> None:
        if b"\0" in np.isfinite(array).tobytes():
            row = int(np.isfinite(array).reshape(len(array), -1).all(1).argmin())
            raise Refusal(400, f"input {name!r}: row {row} has a value that is not finite; the training data had none")

    return check


def _cardinalities(columns: list[tuple[str, int]]) -> TensorCheck:
    most = np.array([cardinality for _, cardinality in columns], np.uint32)
    few = tuple(cardinality for _, cardinality in columns)

    def check(array: Array) -> None:
        if len(array) == 1:  # NumPy takes three times as long for one row
            values = array.tolist()[0]
            if min(values) >= 0 and True not in map(operator.ge, values, few):
                return
        wrong = _unsigned(array) >= most
        if b"\1" in wrong.tobytes():  # several times quicker than any()
            row, column = np.argwhere(wrong)[0].tolist()
            name, cardinality = columns[column]
            came = f"row {row}, column {column} ({name}) has {array[row, column]}"
            raise Refusal(400, f"input 'ids': ids are 0 (unknown) to {cardinality - 1}, {came}")

    return check
