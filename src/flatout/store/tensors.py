"""Nested state as one safetensors file and one JSON document.

`encode` splits any tree of dicts, lists, tuples, numbers, strings and tensors; `decode` restores it. Tied tensors stay tied,
strides (channels_last) are kept. Any other type is an error that names its place in the tree.

The file is written here instead of by the safetensors library, because checkpoints are written during training: these writes
release the interpreter lock, hash while writing, and copy only one tensor at a time. The library can read the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from flatout.base.errors import DamagedFile, StoreError

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_CHUNK_BYTES = 16 << 20
_DEEPEST = 100  # levels of lists and dicts; Python's recursion limit is 1,000 calls
_WIDEST = 16  # a strided layout may take at most this many times the memory of its elements
ToHost = Callable[[Tensor], Tensor]


def plain_copy(tensor: Tensor) -> Tensor:
    return tensor.to("cpu")


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor in this process: all of it, unless it is spread over a mesh of processes."""
    if type(tensor) in (Tensor, Parameter):  # the usual case, without importing torch.distributed
        return tensor
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def encode(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """(document, tensors): the document is JSON and refers to tensors by their place in the tree."""
    tensors: dict[str, Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}

    def walk(node: Any, place: str, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise StoreError(f"{place[:200]} is nested more than {_DEEPEST} levels deep, which a checkpoint can't store")
        if isinstance(node, Tensor):
            own = local_part(node)
            memory = (own.untyped_storage().data_ptr(), own.storage_offset(), tuple(own.shape), own.stride(), own.dtype)
            key = (*memory, tuple(node.shape))
            name = seen.get(key) if own.numel() else None
            if name is None:
                name = place
                while name in tensors:  # {"a.b": ...} and {"a": {"b": ...}} would have the same name
                    name += "'"
                seen[key] = name
                tensors[name] = node.detach()
            entry: dict[str, Any] = {"$tensor": name}
            if not node.is_contiguous() and 0 not in node.stride():  # an expanded tensor can't be written to
                entry["stride"] = list(node.stride())
            return entry
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return {key: walk(value, f"{place}.{key}" if place else key, depth + 1) for key, value in node.items()}
            if all(isinstance(key, int | str) for key in node):
                return {"$items": [[key, walk(value, f"{place}.{key}", depth + 1)] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {"$tuple": [walk(value, f"{place}.{i}", depth + 1) for i, value in enumerate(node)]}
        if isinstance(node, list):
            return [walk(value, f"{place}.{i}", depth + 1) for i, value in enumerate(node)]
        raise StoreError(
            f"{place} is a {type(node).__name__}, which a checkpoint can't store: use tensors, numbers, text, lists and dicts"
        )

    return walk(tree, ""), tensors


def check_document(document: Any) -> None:
    """Raises DamagedFile if `encode` can't have written this."""

    def walk(node: Any, depth: int) -> None:
        if depth > _DEEPEST:
            raise DamagedFile(f"the state is nested more than {_DEEPEST} levels deep")
        if isinstance(node, list):
            for value in node:
                walk(value, depth + 1)
        elif isinstance(node, dict):
            marks = [key for key in node if key.startswith("$")]
            if not marks:
                inside = list(node.values())
            elif "$tensor" in node and node.keys() <= {"$tensor", "stride"} and isinstance(node["$tensor"], str):
                _check_stride(node.get("stride"))
                inside = []
            elif marks == list(node) == ["$tuple"] and isinstance(node["$tuple"], list):
                inside = node["$tuple"]
            elif marks == list(node) == ["$items"] and _are_items(node["$items"]):
                inside = [value for _, value in node["$items"]]
            else:
                raise DamagedFile(f"the state has an entry {', '.join(node)}, which flatout does not write")
            for value in inside:
                walk(value, depth + 1)

    walk(document, 0)


def _are_items(items: Any) -> bool:
    return isinstance(items, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int) for pair in items
    )


def _check_stride(stride: Any) -> None:
    if stride is not None and not (isinstance(stride, list) and all(type(step) is int and step > 0 for step in stride)):
        raise DamagedFile(f"the state has a tensor with the impossible stride {stride!r}")


def decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    def build(node: Any) -> Any:
        if isinstance(node, list):
            return [build(value) for value in node]
        if isinstance(node, dict):
            if "$tensor" in node:
                if node["$tensor"] not in tensors:
                    raise DamagedFile(f"the state names the tensor {node['$tensor']!r}, which is not in its file")
                return with_stride(tensors[node["$tensor"]], node.get("stride"))
            if "$items" in node:
                return {key: build(value) for key, value in node["$items"]}
            if "$tuple" in node:
                return tuple(build(value) for value in node["$tuple"])
            return {key: build(value) for key, value in node.items()}
        return node

    return build(document)


def with_stride(tensor: Tensor, stride: list[int] | None) -> Tensor:
    """The same values with the original memory layout. A layout that would need far more memory is not restored."""
    if stride is None:
        return tensor
    if len(stride) != tensor.dim():
        raise DamagedFile(f"a tensor of shape {list(tensor.shape)} can't have stride {stride}")
    span = 1
    for step, size in sorted(zip(stride, tensor.shape, strict=True)):
        if size > 1:
            if step < span:
                raise DamagedFile(f"a tensor of shape {list(tensor.shape)} can't have stride {stride}: its elements overlap")
            span += step * (size - 1)
    if span > _WIDEST * max(1, tensor.numel()):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], to_host: ToHost = plain_copy, **notes: str) -> str:
    """Write a safetensors file, synced; returns its SHA-256. `notes` go to its header."""
    return stream_tensors(path, tensors, lambda name: to_host(tensors[name].detach()), **notes)


def stream_tensors(path: Path, tensors: Mapping[str, Tensor], content: Callable[[str], Tensor], **notes: str) -> str:
    """Like `write_tensors`, but asks for one tensor's content at a time: of `tensors` only shapes and types are used."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **notes}}
    offset = 0
    # largest element size first, so that each tensor starts at a multiple of its element size
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise StoreError(f"{name} has dtype {tensor.dtype}, which safetensors can't store here")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write(handle, digest, memoryview(len(head).to_bytes(8, "little") + head))
        for name, tensor in tensors.items():
            if tensor.numel():
                flat = content(name).contiguous().reshape(-1).view(torch.uint8)
                _write(handle, digest, flat.numpy().data)
        os.fsync(handle)
    finally:
        os.close(handle)
    return digest.hexdigest()


def _write(handle: int, digest: Any, content: memoryview) -> None:
    for start in range(0, len(content), _CHUNK_BYTES):
        piece = content[start : start + _CHUNK_BYTES]
        digest.update(piece)
        while piece:
            piece = piece[os.write(handle, piece) :]


def read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, MemoryError) as error:
        raise DamagedFile(f"{path} can't be read as safetensors: {error}") from error


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
