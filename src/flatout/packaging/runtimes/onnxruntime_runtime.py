"""onnxruntime as a runtime of a package: from the tensors of prepared rows to the outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from flatout.base.errors import DamagedFile, MachineError
from flatout.packaging.onnx_front import prepared_inputs
from flatout.packaging.onnx_libraries import library
from flatout.packaging.runtimes.runtime import Array, Parts, Runtime

if TYPE_CHECKING:
    import onnx

_ON_CPU = "CPUExecutionProvider"
_ON_CUDA = ("TensorrtExecutionProvider", "CUDAExecutionProvider")
_NEED = "the runtime onnxruntime"
_SMALL_BYTES = 16 << 20  # of a model that may be held twice
_SMALL_BATCHES = tuple(1 << power for power in range(10))
_TIMES, _AS_FAST = 9, 1.05


class OnnxRuntime(Runtime):
    """A session on the ONNX file `path`. What the file does to raw columns or photos is left out.

    Tensors on a CPU are handed over without a copy. On a CUDA device, the providers of TensorRT and CUDA are used if
    onnxruntime was built with them; this has not been run on a GPU yet. Outputs of text, such as `class`, are left out.
    """

    name: ClassVar[str] = "onnxruntime"

    @classmethod
    def why_not(cls, parts: Parts) -> str | None:
        if parts.onnx is None:
            return "the package has no model.onnx"
        try:
            library("onnx", _NEED)
            providers_for(parts.device)
        except MachineError as error:  # a library is missing, or it has no provider for the device
            return str(error)
        return None

    @classmethod
    def load(cls, parts: Parts) -> OnnxRuntime:
        assert parts.onnx is not None
        return cls(parts.onnx, parts.device)

    def __init__(self, path: Path, device: torch.device) -> None:
        library("onnxruntime", _NEED)  # without it nothing is read
        model = _read(path)
        _check_references(model, path)
        inputs = prepared_inputs(model)
        core = from_prepared(model, list(inputs.values()))
        self._values = {name: value.name for name, value in inputs.items()}
        self._device = device
        content, threads = core.SerializeToString(), torch.get_num_threads()
        self._session: Any = _session(content, path.parent, device, threads)
        self._outputs = [output.name for output in self._session.get_outputs()]
        is_small = len(content) + _external_bytes(core) <= _SMALL_BYTES
        self._copy = (content, path.parent) if is_small and threads > 1 and device.type == "cpu" else None
        self._one_thread: Any = None  # a session for small batches
        self._small_rows = 0
        self.takes_arrays = device.type == "cpu"

    def run(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._device.type == "cuda":
            return self._run_on_cuda(rows)
        made = self.run_arrays({name: rows[name].numpy() for name in self._values})
        return {name: torch.from_numpy(array) for name, array in made.items()}

    def run_arrays(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        given = {value: rows[name] for name, value in self._values.items()}
        small = self._small_rows and len(next(iter(given.values()))) <= self._small_rows
        session = self._one_thread if small else self._session
        return dict(zip(self._outputs, session.run(self._outputs, given), strict=True))

    def tune(self, rows: Mapping[str, Tensor]) -> int:
        """Small batches of a small model run on one thread if that is as fast and gives the same bits: threads that wait for
        each other cost more than they save, and take cores from other work."""
        if self._copy is None:
            return self._small_rows
        several, one = self._session, _session(*self._copy, self._device, 1)
        self._copy = None
        for size in _SMALL_BATCHES:
            places = torch.arange(size) % len(next(iter(rows.values())))
            given = {value: rows[name].index_select(0, places).numpy() for name, value in self._values.items()}
            same = all(a.tobytes() == b.tobytes() for a, b in zip(several.run(None, given), one.run(None, given), strict=True))
            if not same or _quickest_s(one, given) > _AS_FAST * _quickest_s(several, given):
                break
            self._one_thread, self._small_rows = one, size
        return self._small_rows

    def _run_on_cuda(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs are read where they are. Outputs go through the host, since onnxruntime's own GPU memory is no tensor."""
        binding = self._session.io_binding()
        held = {value: rows[name].to(self._device).contiguous() for name, value in self._values.items()}
        torch.cuda.current_stream(self._device).synchronize()  # onnxruntime computes on a stream of its own
        for value, tensor in held.items():
            number, kind = self._device.index or 0, tensor[:0].cpu().numpy().dtype
            binding.bind_input(value, "cuda", number, kind, tuple(tensor.shape), tensor.data_ptr())
        for name in self._outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        made = binding.copy_outputs_to_cpu()
        return {name: torch.from_numpy(array).to(self._device) for name, array in zip(self._outputs, made, strict=True)}


def _read(path: Path) -> onnx.ModelProto:
    try:
        return library("onnx", _NEED).load(path, load_external_data=False)  # type: ignore[no-any-return]
    except Exception as error:  # protobuf has errors of its own
        raise DamagedFile(f"{path} can't be read as ONNX: {str(error).partition(chr(10))[0]}") from error


def _check_references(model: onnx.ModelProto, path: Path) -> None:
    """Tensors may only refer to files next to the model: DamagedFile for any other place."""
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and (Path(entry.value).name != entry.value or entry.value in ("", ".", "..")):
                raise DamagedFile(f"{path}: tensor {tensor.name!r} refers to {entry.value!r}, which is not a file next to it")


def _external_bytes(model: onnx.ModelProto) -> int:
    """Of weights in files next to the model."""
    entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
    return sum(int(entry.value) for entry in entries if entry.key == "length")


def providers_for(device: torch.device) -> list[str]:
    """The execution providers for a device, the preferred one first; operators that they lack run on the CPU.

    MachineError if this onnxruntime has none for the device.
    """
    there = library("onnxruntime", _NEED).get_available_providers()
    if device.type == "cpu":
        return [_ON_CPU]
    found = [name for name in _ON_CUDA if name in there] if device.type == "cuda" else []
    if not found:
        advice = ": pip install onnxruntime-gpu" if device.type == "cuda" else ""
        raise MachineError(f"this onnxruntime runs on {', '.join(there)} and has no provider for {device.type}{advice}")
    return [*found, _ON_CPU]


def from_prepared(model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """The part of `model` from these values to the outputs that are tensors of numbers."""
    onnx = library("onnx", _NEED)
    strings = onnx.TensorProto.STRING
    outputs = [output for output in model.graph.output if output.type.tensor_type.elem_type != strings]
    needed = {output.name for output in outputs}
    given = {value.name for value in inputs}
    nodes = []
    for node in reversed(model.graph.node):
        if needed.isdisjoint(node.output) or not given.isdisjoint(node.output):
            continue
        nodes.append(node)
        needed.update(read_by(node))
    weights = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    graph = onnx.helper.make_graph(nodes[::-1], model.graph.name, inputs, outputs, weights)
    return onnx.helper.make_model(  # type: ignore[no-any-return]
        graph, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version
    )


def read_by(node: onnx.NodeProto) -> set[str]:
    """The values that a node takes, also inside of its branches and loops."""
    read = set(node.input)
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            read.update(name for inner in graph.node for name in read_by(inner))
            read.update(output.name for output in graph.output)
    return read


def _quickest_s(session: Any, given: Mapping[str, Array]) -> float:
    times = []
    for _ in range(_TIMES):
        began_s = time.perf_counter()
        session.run(None, given)
        times.append(time.perf_counter() - began_s)
    return min(times)


def _session(content: bytes, folder: Path, device: torch.device, threads: int) -> Any:
    made = library("onnxruntime", _NEED).InferenceSession
    return made(content, _options(folder, threads), providers=providers_for(device))


def _options(folder: Path, threads: int) -> Any:
    onnxruntime = library("onnxruntime", _NEED)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # idle threads that spin take cores from torch and from other work
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return options
