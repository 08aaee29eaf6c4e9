"""The part of a package's ONNX file that computes: from prepared rows to outputs. It can be changed and put back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.packaging.onnx_front import prepared_inputs
from flatout.packaging.onnx_graph import checked
from flatout.packaging.onnx_libraries import library
from flatout.packaging.runtimes.onnxruntime_runtime import from_prepared, read_by

if TYPE_CHECKING:
    import onnx


def whole_model(path: Path) -> onnx.ModelProto:
    """With the weights that the file refers to."""
    return library("onnx").load(path)  # type: ignore[no-any-return]


def core_of(whole: onnx.ModelProto) -> onnx.ModelProto:
    made = from_prepared(whole, list(prepared_inputs(whole).values()))
    made.metadata_props.extend(whole.metadata_props)  # names of the inputs as columns
    return made


def with_core(whole: onnx.ModelProto, core: onnx.ModelProto) -> onnx.ModelProto:
    """`whole` with its computing part replaced by `core`, which has the same inputs and outputs."""
    before = core_of(whole)
    replaced = {output for node in before.graph.node for output in node.output}
    outside = [node for node in whole.graph.node if replaced.isdisjoint(node.output)]
    used = {name for node in outside for name in read_by(node)}
    made: Any = library("onnx").ModelProto()
    made.CopyFrom(whole)
    del made.graph.node[:], made.graph.initializer[:], made.graph.value_info[:]
    constants = {tensor.name for tensor in core.graph.initializer}
    made.graph.initializer.extend(core.graph.initializer)
    made.graph.initializer.extend(one for one in whole.graph.initializer if one.name in used and one.name not in constants)
    behind = _that_read(outside, {value.name for value in core.graph.output})
    made.graph.node.extend([node for node in outside if node.name not in behind])
    made.graph.node.extend(core.graph.node)
    made.graph.node.extend([node for node in outside if node.name in behind])
    for opset in core.opset_import:
        there = next((one for one in made.opset_import if one.domain == opset.domain), None)
        if there is None:
            made.opset_import.append(opset)
        else:
            there.version = max(there.version, opset.version)
    made.ir_version = max(made.ir_version, core.ir_version)
    known = {(one.domain, one.name) for one in made.functions}
    made.functions.extend(one for one in core.functions if (one.domain, one.name) not in known)
    return checked(made)


def _that_read(nodes: Iterable[onnx.NodeProto], values: set[str]) -> set[str]:
    """Names of the nodes that need one of these values, directly or not. `nodes` are in order."""
    reached, found = set(values), set()
    for node in nodes:
        if not reached.isdisjoint(read_by(node)):
            found.add(node.name)
            reached.update(node.output)
    return found
