"""Export weights that are spread over ranks as one safetensors file of whole tensors.

Rank 0 asks for the parts of one tensor at a time: it never holds more than one whole tensor besides its own parts, and the
other ranks need no extra memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from flatout.base.errors import StoreError
from flatout.base.files import sync_folder
from flatout.store.sharded_files import TensorPart, parts_of, share_out
from flatout.store.sharded_peers import Peers, why_failed
from flatout.store.tensors import ToHost, local_part, plain_copy, stream_tensors, write_tensors

Holders = dict[str, list[tuple[int, TensorPart]]]  # the parts of each tensor and the ranks that have them


Expect = Callable[[str, str, int], None]


def export(
    path: Path,
    tensors: Mapping[str, Tensor],
    peers: Peers,
    to_host: ToHost = plain_copy,
    expect: Expect = lambda name, sha256, size: None,
) -> None:
    """All ranks call this; rank 0 writes. Tied weights are written under each of their names.

    `expect` is called with the file's name, checksum and size before the file gets that name.
    """
    if peers.size == 1:
        own = {name: local_part(tensor) for name, tensor in tensors.items()}
        _put(path, lambda aside: write_tensors(aside, own, to_host), expect)
        return
    holders: Holders = {}

    def find(offers: list[list[list[object]]]) -> list[None]:
        parts = [[TensorPart(*part) for part in offer] for offer in offers]  # type: ignore[arg-type]
        names = dict.fromkeys(part.name for offer in parts for part in offer)
        for rank, share in enumerate(share_out(parts, names)):
            for part in share:
                holders.setdefault(part.name, []).append((rank, part))
        return [None] * peers.size

    peers.agree(lambda: parts_of(tensors), find)
    if peers.rank:
        _give(path, tensors, peers, to_host)
    else:
        _collect(path, _Collector(tensors, holders, peers, to_host), expect)


class _Collector:
    def __init__(self, tensors: Mapping[str, Tensor], holders: Holders, peers: Peers, to_host: ToHost) -> None:
        self._tensors, self._holders, self.peers, self._to_host = tensors, holders, peers, to_host
        self.wholes = {
            name: torch.empty(parts[0][1].shape, dtype=getattr(torch, parts[0][1].dtype), device="meta")
            for name, parts in holders.items()
        }

    def whole(self, name: str) -> Tensor:
        parts = self._holders[name]
        if [rank for rank, _ in parts] == [0]:
            return self._to_host(local_part(self._tensors[name]).detach())
        whole = torch.empty_like(self.wholes[name], device="cpu")
        for rank, part in parts:
            place = whole[tuple(slice(start, start + size) for start, size in zip(part.offsets, part.sizes, strict=True))]
            if rank == 0:
                place.copy_(self._to_host(local_part(self._tensors[name]).detach()))
                continue
            self.peers.say(rank, {"give": name})
            if (problem := self.peers.hear(rank)) is not None:
                raise StoreError(f"rank {rank}: {problem}")
            piece = place if place.is_contiguous() else torch.empty_like(place, memory_format=torch.contiguous_format)
            self.peers.receive(rank, piece.view(-1).view(torch.uint8))
            if piece is not place:
                place.copy_(piece)
        return whole


def _collect(path: Path, collector: _Collector, expect: Expect) -> None:
    peers, failure = collector.peers, None
    try:
        _put(path, lambda aside: stream_tensors(aside, collector.wholes, collector.whole), expect)
    except BaseException as error:
        failure = why_failed(error)
        raise
    finally:
        for rank in range(1, peers.size):
            with suppress(StoreError):  # this rank is gone: reported already, or the file is complete without it
                peers.say(rank, {"failed": failure})


def _give(path: Path, tensors: Mapping[str, Tensor], peers: Peers, to_host: ToHost) -> None:
    while "give" in (asked := peers.hear(0)):
        try:
            part = to_host(local_part(tensors[asked["give"]]).detach()).contiguous()
        except Exception as error:
            peers.say(0, why_failed(error))
            continue
        peers.say(0, None)
        peers.send(0, part.view(-1).view(torch.uint8))
    if asked["failed"] is not None:
        raise StoreError(asked["failed"])


def _put(path: Path, write: Callable[[Path], str], expect: Expect) -> None:
    """Replace the file completely, or leave it unchanged."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        digest = write(aside)
        expect(path.name, digest, aside.stat().st_size)
        os.replace(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        way_out = "free some disk space, then run the same command to resume from the last checkpoint"
        raise StoreError(f"{path} could not be written: {error.strerror}; {way_out}") from error
    finally:
        aside.unlink(missing_ok=True)
