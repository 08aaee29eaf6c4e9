"""Operators in front of an ONNX model and behind it: raw inputs to the tensors of prepared rows, class numbers to names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.packaging.onnx_graph import ROWS, checked
from flatout.packaging.onnx_libraries import library
from flatout.packaging.ports import Port

if TYPE_CHECKING:
    import onnx

ML_DOMAIN, ML_OPSET = "ai.onnx.ml", 3
SIGNATURE, RULES, PREPARED = "signature", "rules", "prepared"  # keys of the model's metadata
_INNER = "model/"
_ELEMENT_TYPES = {
    "float64": "DOUBLE", "float32": "FLOAT", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL",
    "string": "STRING",
}  # fmt: skip


@dataclass
class FrontGraph:
    """Operators and constants, in order. Names of values are numbered, below `front/`."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def call(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """The name of the operator's only output."""
        made = f"front/{operator}_{len(self.nodes)}"
        helper = library("onnx.helper")
        self.nodes.append(helper.make_node(operator, list(inputs), [made], name=made, domain=domain or None, **attributes))
        return made

    def constant(self, values: Any, dtype: type) -> str:
        name = f"front/constant_{len(self.constants)}"
        self.constants.append(library("onnx.numpy_helper").from_array(np.asarray(values, dtype=dtype), name))
        return name

    def side_by_side(self, columns: Sequence[str]) -> str:
        """Columns [rows] as one [rows, columns]."""
        axis = self.constant([1], np.int64)
        wide = [self.call("Unsqueeze", column, axis) for column in columns]
        return wide[0] if len(wide) == 1 else self.call("Concat", *wide, axis=1)


def input_names(columns: Sequence[str], model: onnx.ModelProto) -> dict[str, str]:
    """Names of the raw inputs by column: the column's name, and `NAME_in` where an output has that name."""
    taken = {"class", *(output.name for output in model.graph.output)}
    names: dict[str, str] = {}
    for column in columns:
        name = column
        while name in taken or (name != column and name in columns):
            name += "_in"
        names[column] = name
        taken.add(name)
    return names


def with_front(
    model: onnx.ModelProto, front: FrontGraph, raw: Sequence[Port], made: Mapping[str, str], class_names: Sequence[str] | None
) -> onnx.ModelProto:
    """A new model that takes the `raw` inputs. `made` has for each input of `model` the value of `front` that replaces it.

    With class names, an output `class` of text follows the output `prediction`.
    """
    onnx = library("onnx")
    inner = library("onnx.compose").add_prefix(model, _INNER, rename_outputs=False)
    prepared = [_port(value) for value in model.graph.input]
    links = [onnx.helper.make_node("Identity", [made[port.name]], [_INNER + port.name]) for port in prepared]
    nodes = [*front.nodes, *links, *inner.graph.node]
    values, constants = [_value(port) for port in raw], [*front.constants, *inner.graph.initializer]
    whole = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "model", values, list(inner.graph.output), constants),
        opset_imports=list(model.opset_import),
        functions=list(inner.functions),
        ir_version=model.ir_version,
        producer_name="flatout",
    )
    whole.metadata_props.extend(model.metadata_props)
    _set_metadata(whole, PREPARED, json.dumps([port.to_json() for port in prepared]))
    _declare_ml(whole)
    return checked(whole if class_names is None else with_class_names(whole, class_names))


def with_class_names(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A new model with an output `class` of text after the output `prediction`; the same model if that is no class number.

    A number above those of the classes becomes empty text, as in predict.
    """
    types = library("onnx").TensorProto
    outputs = list(model.graph.output)
    place = next((place for place, value in enumerate(outputs) if value.name == "prediction"), None)
    if place is None or outputs[place].type.tensor_type.elem_type != types.INT64:
        return model
    made: onnx.ModelProto = library("onnx").ModelProto()
    made.CopyFrom(model)
    helper = library("onnx.helper")
    node = helper.make_node(
        "LabelEncoder", ["prediction"], ["class"], name="class", domain=ML_DOMAIN,
        keys_int64s=list(range(len(names))), values_strings=list(names), default_string="",
    )  # fmt: skip
    made.graph.node.append(node)
    sizes = [size.dim_param or size.dim_value for size in outputs[place].type.tensor_type.shape.dim]
    outputs.insert(place + 1, helper.make_tensor_value_info("class", types.STRING, sizes))
    del made.graph.output[:]
    made.graph.output.extend(outputs)
    _declare_ml(made)
    return made


def prepared_inputs(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The tensors of prepared rows, by name, as values of the model. Without a front they are the model's inputs."""
    for entry in model.metadata_props:
        if entry.key == PREPARED:
            ports = [Port.from_json(port) for port in json.loads(entry.value)]
            return {port.name: _value(replace(port, name=_INNER + port.name)) for port in ports}
    return {value.name: value for value in model.graph.input}


def describe(
    model: onnx.ModelProto, rules: Sequence[str], inputs: Sequence[Mapping[str, Any]], classes: Sequence[str] | None
) -> None:
    """Write into the model's metadata: `rules` are sentences, one a line; `signature` is JSON."""
    outputs = [_port(value).to_json() for value in model.graph.output]
    signature = {"inputs": list(inputs), "outputs": outputs, "classes": None if classes is None else list(classes)}
    _set_metadata(model, SIGNATURE, json.dumps(signature))
    _set_metadata(model, RULES, "\n".join(rules))


def _set_metadata(model: onnx.ModelProto, key: str, text: str) -> None:
    entry = next((one for one in model.metadata_props if one.key == key), None) or model.metadata_props.add()
    entry.key, entry.value = key, text


def _declare_ml(model: onnx.ModelProto) -> None:
    used = any(node.domain == ML_DOMAIN for node in model.graph.node)
    if used and not any(opset.domain == ML_DOMAIN for opset in model.opset_import):
        model.opset_import.append(library("onnx.helper").make_opsetid(ML_DOMAIN, ML_OPSET))


def _value(port: Port) -> onnx.ValueInfoProto:
    loaded = library("onnx")
    sizes = [size if size is not None else ROWS if axis == 0 else f"{port.name}_{axis}" for axis, size in enumerate(port.shape)]
    element_type = getattr(loaded.TensorProto, _ELEMENT_TYPES[port.dtype])
    return loaded.helper.make_tensor_value_info(port.name, element_type, sizes)  # type: ignore[no-any-return]


def _port(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    name = library("onnx").TensorProto.DataType.Name(tensor.elem_type)
    dtype = next((plain for plain, own in _ELEMENT_TYPES.items() if own == name), name.lower())
    return Port(value.name, dtype, tuple(None if size.dim_param else size.dim_value for size in tensor.shape.dim))
