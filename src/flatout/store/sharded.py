"""Checkpoints of a run in which each rank has a part of the state. Any other number of ranks can read them.

The loop waits only for `snapshot`, a copy of this process's part. `write` may run in a thread: each rank writes its parts into
one temporary folder, then rank 0 adds the document and all checksums and renames the folder. If a rank fails or dies, no
checkpoint of that name exists, and every rank raises an error that names the rank and the reason. A single rank writes the
usual single file.

All ranks call `write`, `load` and `load_latest` in the same order, on a folder that all of them can access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DamagedCheckpoint, DamagedFile, StoreError
from flatout.store.checkpoints import SHARDED, Checkpoints, check_files, named_as_damage, read_head
from flatout.store.sharded_files import TensorFiles, TensorPart, parts_of, share_out, write_part
from flatout.store.sharded_peers import Peers
from flatout.store.sharded_trees import built, merged, named_in, placed
from flatout.store.tensors import ToHost, decode, encode, local_part, plain_copy


@dataclass(frozen=True)
class RankSnapshot:
    """One rank's state: the document of `encode`, copies of its parts in file order, and the tensors they are parts of (only
    their layout is used)."""

    document: Any
    copies: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]


def snapshot(tree: Any) -> RankSnapshot:
    document, tensors = encode(tree)
    parts = local_parts(tensors)
    with torch.no_grad():
        return RankSnapshot(document, {n: t.clone(memory_format=torch.contiguous_format) for n, t in parts.items()}, tensors)


def local_parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: local_part(tensor) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class ShardedCheckpoints:
    checkpoints: Checkpoints
    peers: Peers

    def write(self, step: int, taken: RankSnapshot, to_host: ToHost = plain_copy) -> Path:
        """A complete checkpoint of all ranks, or nothing."""
        peers, document = self.peers, None
        if peers.size == 1:
            return self.checkpoints.write(step, taken.document, taken.copies, to_host)
        final = self.checkpoints.path(step)
        aside = self.checkpoints.aside(step)

        def plan(offers: list[tuple[int, Any, list[list[Any]]]]) -> list[list[TensorPart]]:
            nonlocal document
            steps = [offer[0] for offer in offers]
            if len(set(steps)) > 1:
                raise StoreError(f"ranks 0 to {peers.size - 1} want to save different steps: {steps}")
            document = reduce(merged, (offer[1] for offer in offers))
            shares = share_out([[TensorPart(*part) for part in offer[2]] for offer in offers], named_in(document))
            self.checkpoints.begin(step)
            return shares

        def write_mine() -> dict[str, str]:
            if not aside.is_dir():
                raise StoreError(f"{aside.parent} is not the folder that rank 0 writes to: all ranks must share one folder")
            return write_part(aside, peers.rank, mine, taken.copies, to_host)

        def finish(written: list[dict[str, str]]) -> list[Any]:
            digests = {name: digest for each in written for name, digest in each.items()}
            self.checkpoints.finish(step, document, digests, SHARDED)
            return peers.everyone(None)

        try:
            share = peers.agree(lambda: (step, taken.document, parts_of(taken.tensors)), plan)
            mine = [TensorPart(*part) for part in share]
            peers.agree(write_mine, finish)
        except BaseException:
            if peers.rank == 0:
                self.checkpoints.discard(step)
            raise
        return final

    def load(self, step: int, into: Any = None) -> Any:
        """The tree of a checkpoint, whatever number of ranks wrote it.

        `into` is a tree of the same structure with the current layout: its tensors are filled in place and returned in the
        tree. Entries that only another rank's tree has are left out; entries that no rank has a place for are read whole.
        """
        peers, path = self.peers, self.checkpoints.path(step)
        if peers.size == 1 and into is None:
            return self.checkpoints.load(step)
        manifest, document = self._from_first(lambda: read_head(path))
        share = sorted(manifest["sha256"])[peers.rank :: peers.size]
        self._all(lambda: check_files(path, manifest, share), path)
        if into is None:
            tensors: dict[str, Tensor] = {}
            self._all(lambda: tensors.update(TensorFiles(path, manifest["sha256"]).read_whole()), path)
            with named_as_damage(path):  # the same on all ranks
                return decode(document, tensors)
        self._all(lambda: _check_names(document, TensorFiles(path, manifest["sha256"])), path)
        places = list(placed(document, into))
        unplaced = sorted(set(named_in(document)) - {name for name, _ in places})
        homeless = peers.agree(
            lambda: unplaced, lambda said: peers.everyone(sorted(set.intersection(*(set(names) for names in said))))
        )
        wholes: dict[str, Tensor] = {}

        def read() -> None:
            files = TensorFiles(path, manifest["sha256"])
            for targets in _one_of_a_name(places):
                files.read_into(targets)
            wholes.update(files.read_whole(homeless))

        self._all(read, path)
        with named_as_damage(path):
            return built(document, into, wholes)

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first, as rank 0 sees them."""
        found: list[int] = self._from_first(self.checkpoints.steps)
        return found

    def load_latest(self, on_damage: Callable[[int, str], None], into: Any = None) -> tuple[int, Any] | None:
        """The newest complete checkpoint; each damaged one found before it is reported on every rank and skipped."""
        for step in reversed(self.steps()):
            try:
                return step, self.load(step, into)
            except DamagedCheckpoint as damage:
                on_damage(step, str(damage))
        return None

    def _from_first(self, read: Callable[[], Any]) -> Any:
        return self.peers.agree(lambda: read() if self.peers.rank == 0 else None, lambda said: self.peers.everyone(said[0]))

    def _all(self, work: Callable[[], object], path: Path) -> None:
        """All ranks succeed, or all raise an error that names the ranks that failed."""

        def tried() -> None:
            with named_as_damage(path):
                work()

        self.peers.agree(tried, lambda said: self.peers.everyone(None))


def _check_names(document: Any, files: TensorFiles) -> None:
    if missing := sorted(set(named_in(document)) - files.names):
        raise DamagedFile(f"state.json names the tensor {missing[0]!r}, which is in none of its files")


def _one_of_a_name(places: list[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Weights that were tied when saved may be separate here: then several tensors read the same entry."""
    while places:
        targets = dict(places)
        yield targets
        places = [(name, tensor) for name, tensor in places if targets[name] is not tensor]
