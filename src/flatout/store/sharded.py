"""Checkpoints of a run whose ranks each have a part of its state, and how they are read by any other number of ranks.

The loop waits for `snapshot`, a copy of what its own process has. `write` may be called in a thread: each rank writes its
parts into one folder aside, the first one adds the document and the checksums of all and gives it its name. A failure on one
rank, its death included, leaves no checkpoint of that name, and every rank raises with who it was and why. A rank by itself
writes the one file that it always wrote.

Every rank calls `write`, `load` and `load_latest`, in the same order, on a folder that all of them see.
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
    """What one rank has to keep: the document of `encode`, copies of its parts in the order of the file, and the tensors
    that these are parts of, of which only the layout is looked at."""

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
        """A whole checkpoint of all ranks, or none at all."""
        peers, document = self.peers, None
        if peers.size == 1:
            return self.checkpoints.write(step, taken.document, taken.copies, to_host)
        final = self.checkpoints.path(step)
        aside = self.checkpoints.aside(step)

        def plan(offers: list[tuple[int, Any, list[list[Any]]]]) -> list[list[TensorPart]]:
            nonlocal document
            steps = [offer[0] for offer in offers]
            if len(set(steps)) > 1:
                raise StoreError(f"ranks 0 to {peers.size - 1} came with different steps to keep: {steps}")
            document = reduce(merged, (offer[1] for offer in offers))
            shares = share_out([[TensorPart(*part) for part in offer[2]] for offer in offers], named_in(document))
            self.checkpoints.begin(step)
            return shares

        def write_mine() -> dict[str, str]:
            if not aside.is_dir():
                raise StoreError(f"{aside.parent} is not the folder that rank 0 writes to: a run needs one that all ranks see")
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
        """The tree of a checkpoint, of whatever number of ranks it was.

        `into`, a tree as it was kept, only laid out as it is now: its tensors are filled where they are and are those of the
        tree that comes back. What is in the tree of another rank alone is left out; what no rank has a place for comes whole.
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
            with named_as_damage(path):  # the same for all ranks
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
        """Of all checkpoints, oldest first, as the first rank finds them."""
        found: list[int] = self._from_first(self.checkpoints.steps)
        return found

    def load_latest(self, on_damage: Callable[[int, str], None], into: Any = None) -> tuple[int, Any] | None:
        """The newest checkpoint that is whole; each damaged one on the way is reported, on every rank, and passed over."""
        for step in reversed(self.steps()):
            try:
                return step, self.load(step, into)
            except DamagedCheckpoint as damage:
                on_damage(step, str(damage))
        return None

    def _from_first(self, read: Callable[[], Any]) -> Any:
        return self.peers.agree(lambda: read() if self.peers.rank == 0 else None, lambda said: self.peers.everyone(said[0]))

    def _all(self, work: Callable[[], object], path: Path) -> None:
        """All ranks can do this, or it is said on all which of them can't."""

        def tried() -> None:
            with named_as_damage(path):
                work()

        self.peers.agree(tried, lambda said: self.peers.everyone(None))


def _check_names(document: Any, files: TensorFiles) -> None:
    if missing := sorted(set(named_in(document)) - files.names):
        raise DamagedFile(f"state.json names the tensor {missing[0]!r}, which none of its files has")


def _one_of_a_name(places: list[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Weights that were tied when they were kept may be apart here: then several tensors want to read the same."""
    while places:
        targets = dict(places)
        yield targets
        places = [(name, tensor) for name, tensor in places if targets[name] is not tensor]
