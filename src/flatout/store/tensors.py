"""Nested state as one safetensors file and one JSON document.

`encode` takes any tree of dicts, lists, tuples, numbers, strings and tensors apart and `decode` puts it together again: tied
tensors stay tied, strides (channels_last) come back as they were. Anything else is refused with its place in the tree.

The file is written here rather than by the safetensors library because a checkpoint is written beside a running loop: these
writes let go of the interpreter lock, hash as they go, and never hold more than one tensor's copy. The library reads it.
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

from flatout.base.errors import StoreError

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_CHUNK_BYTES = 16 << 20
ToHost = Callable[[Tensor], Tensor]


def plain_copy(tensor: Tensor) -> Tensor:
    return tensor.to("cpu")


def local_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: all of it, unless it is spread over a mesh of processes."""
    if type(tensor) in (Tensor, Parameter):  # nearly always, and then nothing of torch.distributed needs to be loaded
        return tensor
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def encode(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """(document, tensors): the document is JSON and names the tensors by their place in the tree."""
    tensors: dict[str, Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}

    def walk(node: Any, place: str) -> Any:
        if isinstance(node, Tensor):
            own = local_part(node)
            memory = (own.untyped_storage().data_ptr(), own.storage_offset(), tuple(own.shape), own.stride(), own.dtype)
            key = (*memory, tuple(node.shape))
            name = seen.get(key) if own.numel() else None
            if name is None:
                name = place
                while name in tensors:  # {"a.b": ...} beside {"a": {"b": ...}}
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
                return {key: walk(value, f"{place}.{key}" if place else key) for key, value in node.items()}
            if all(isinstance(key, int | str) for key in node):
                return {"$items": [[key, walk(value, f"{place}.{key}")] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {"$tuple": [walk(value, f"{place}.{i}") for i, value in enumerate(node)]}
        if isinstance(node, list):
            return [walk(value, f"{place}.{i}") for i, value in enumerate(node)]
        raise StoreError(
            f"{place} holds a {type(node).__name__}, which a checkpoint can't keep: tensors, numbers, text, lists and dicts"
        )

    return walk(tree, ""), tensors


def decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    def build(node: Any) -> Any:
        if isinstance(node, list):
            return [build(value) for value in node]
        if isinstance(node, dict):
            if "$tensor" in node:
                return with_stride(tensors[node["$tensor"]], node.get("stride"))
            if "$items" in node:
                return {key: build(value) for key, value in node["$items"]}
            if "$tuple" in node:
                return tuple(build(value) for value in node["$tuple"])
            return {key: build(value) for key, value in node.items()}
        return node

    return build(document)


def with_stride(tensor: Tensor, stride: list[int] | None) -> Tensor:
    if stride is None:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], to_host: ToHost = plain_copy, **notes: str) -> str:
    """Write a safetensors file, synced; returns its SHA-256. `notes` go to its header."""
    return stream_tensors(path, tensors, lambda name: to_host(tensors[name].detach()), **notes)


def stream_tensors(path: Path, tensors: Mapping[str, Tensor], content: Callable[[str], Tensor], **notes: str) -> str:
    """The same for contents that are asked for one after the other: of `tensors` only shapes and types are looked at."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **notes}}
    offset = 0
    # widest first, so that each tensor lies at a multiple of its own element size
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise StoreError(f"{name} has dtype {tensor.dtype}, which safetensors can't hold here")
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
    except (SafetensorError, OSError, ValueError) as error:
        raise StoreError(f"{path} can't be read as safetensors: {error}") from error


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
