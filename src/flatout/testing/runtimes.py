"""Conformance suite for a runtime of packages: subclass it in a test to check that it can stand for any other runtime.

class TestMine(RuntimeConformance):
    kind = Mine

    def parts(self):
        return package.parts(torch.device("cpu"))

    def rows(self):
        return package.samples.rows

The runtime is loaded once for all tests of the class, because some runtimes compile.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from flatout.data.source import Batch
from flatout.packaging.parity import TOLERANCES
from flatout.packaging.program import dtype_named
from flatout.packaging.runtimes.runtime import Parts, Runtime

_SIZES = (1, 7, 64)


class RuntimeConformance:
    """Its outputs are compared with those of the program run by PyTorch, operator by operator."""

    kind: ClassVar[type[Runtime]]
    _loaded: ClassVar[dict[type, Runtime]] = {}

    def parts(self) -> Parts:
        raise NotImplementedError("override parts(): return the program, its weights and a device")

    def rows(self) -> Batch:
        """At least 64 prepared rows, the same each time."""
        raise NotImplementedError("override rows(): return the inputs of the program by name")

    def test_it_has_a_name_and_can_run_here(self) -> None:
        assert self.kind.name.isidentifier() and isinstance(self.kind.needs_compiler, bool)
        assert self.kind.why_not(self.parts()) is None

    def test_batches_of_all_sizes_give_the_same_outputs(self) -> None:
        rows, runtime = self.rows(), self._runtime()
        for size in (*_SIZES, *_SIZES):
            self._agree(runtime.run(_cut(rows, size)), _cut(rows, size), f"a batch of {size}")

    def test_outputs_have_the_names_types_and_shapes_of_the_program(self) -> None:
        made = self._runtime().run(_cut(self.rows(), 7))
        ports = self.parts().program.outputs
        assert list(made) == [port.name for port in ports], "names, in the order of the program"
        for port in ports:
            output = made[port.name]
            assert output.dtype == dtype_named(port.dtype) and output.shape[0] == 7, port.name
            assert len(output.shape) == len(port.shape), port.name
            assert all(size in (None, came) for size, came in zip(port.shape, output.shape, strict=True)), port.name
            assert output.device.type == self.parts().device.type, port.name

    def test_a_result_stays_when_the_next_batch_comes(self) -> None:
        rows, runtime = self.rows(), self._runtime()
        others = {name: column.flip(0) for name, column in rows.items()}
        first = runtime.run(_cut(rows, 7))
        before = {name: output.clone() for name, output in first.items()}
        runtime.run(_cut(others, 7))
        assert all(torch.equal(first[name], before[name]) for name in before), "the next call changes the result of this one"

    def test_inputs_are_not_changed(self) -> None:
        rows = self.rows()
        before = {name: column.clone() for name, column in rows.items()}
        self._runtime().run(rows)
        assert all(torch.allclose(rows[name], before[name], rtol=0, atol=0, equal_nan=True) for name in rows)

    def test_a_batch_without_rows_has_outputs_without_rows(self) -> None:
        made = self._runtime().run(_cut(self.rows(), 0))
        ports = self.parts().program.outputs
        assert list(made) == [port.name for port in ports]
        assert all(len(made[port.name]) == 0 and made[port.name].dtype == dtype_named(port.dtype) for port in ports)

    def test_rows_may_lie_apart_in_memory_and_other_columns_are_ignored(self) -> None:
        rows = _cut(self.rows(), 14)
        apart = {name: column[::2] for name, column in rows.items()}
        whole = {name: column.contiguous() for name, column in apart.items()}
        self._agree(self._runtime().run({**apart, "of nobody": torch.zeros(7)}), whole, "rows that lie apart")

    def test_other_types_are_converted_or_refused(self) -> None:
        """float64 where the program takes float32 must not be read as if it were float32."""
        rows = _cut(self.rows(), 7)
        for name, column in rows.items():
            other = column.double() if column.dtype == torch.float32 else column.to(torch.int16)
            try:
                made = self._runtime().run({**rows, name: other})
            except Exception:  # the error of any library will do
                continue
            self._agree(made, rows, f"{name} as {other.dtype}")

    def test_a_column_that_is_missing_is_an_error(self) -> None:
        port = self.parts().program.inputs[0]
        rows = _cut(self.rows(), 7)
        rows.pop(port.name)
        try:
            self._runtime().run(rows)
        except Exception:
            return
        raise AssertionError(f"it gives outputs without the input {port.name}")

    def test_its_curve_has_growing_sizes_and_positive_times(self) -> None:
        points = self._runtime().curve(self.rows(), (1, 4, 16))
        sizes = [point.batch for point in points]
        assert sizes and sizes == sorted(set(sizes)) and sizes[0] == 1
        for point in points:
            assert 0 < point.low_s <= point.median_s <= point.high_s and point.repeats >= 1
            assert point.rows_per_s > 0

    def _runtime(self) -> Runtime:
        if type(self) not in self._loaded:
            self._loaded[type(self)] = self.kind.load(self.parts())
        return self._loaded[type(self)]

    def _agree(self, made: dict[str, Tensor], rows: Batch, what: str) -> None:
        parts = self.parts()
        with torch.no_grad():
            wanted = parts.program.module(parts.weights, torch.device("cpu"))(*(rows[p.name] for p in parts.program.inputs))
        tolerance = TOLERANCES[parts.precision]
        for port, expected in zip(parts.program.outputs, wanted, strict=True):
            found = made[port.name].cpu()
            assert found.shape == expected.shape, f"{what}: {port.name} is {list(found.shape)}, expected {list(expected.shape)}"
            close = torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
            assert close, f"{what}: {port.name} differs by {(found.double() - expected.double()).abs().max():.2g}"


def _cut(rows: Batch, size: int) -> Batch:
    return {name: column[:size] for name, column in rows.items()}
