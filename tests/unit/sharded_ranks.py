"""Processes that hold parts of one state, for tests: real ranks over Gloo, and what each of them does with its part.

They are forked off a server that has imported torch and done nothing with it, which takes a tenth of starting each anew.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatout.base.errors import FlatoutError
from flatout.store.checkpoints import Checkpoints
from flatout.store.sharded import ShardedCheckpoints, local_parts, snapshot
from flatout.store.sharded_export import export
from flatout.store.sharded_peers import Peers
from flatout.store.tensors import encode
from flatout.world.world import ProcessWorld, World

KILLED = "killed"
_PATIENCE_S = 180.0  # a rank that says nothing for that long hangs: 8 of them on two busy cores took over a minute
Axes = dict[str, int]


def ranks(size: int, job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `job(world, *arguments)` returned on each rank; KILLED where that rank was."""
    context: Any = multiprocessing.get_context("forkserver")
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        here, there = context.Pipe()
        process = context.Process(target=_rank, args=(rank, size, store.port, there, job, arguments))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        results = [_result(rank, pipe) for rank, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.kill()
            process.join()
    broken = [result for result in results if isinstance(result, _Broken)]
    assert not broken, "\n".join(str(each) for each in broken)
    return results


class _Broken(str):
    pass


def _result(rank: int, pipe: Any) -> Any:
    if not pipe.poll(_PATIENCE_S):
        return _Broken(f"rank {rank} hangs")
    try:
        return pipe.recv()
    except EOFError:
        return KILLED


def _rank(rank: int, size: int, port: int, pipe: Any, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    made: Any = dist
    store = made.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    world = ProcessWorld(torch.device("cpu"), rank, size, store, ours=True)
    try:
        pipe.send(job(world, *arguments))
    except BaseException:
        pipe.send(_Broken(f"rank {rank}: {traceback.format_exc()}"))
    pipe.recv()  # a rank that has left would be taken for one that died


# ---- a state, whole and in parts ----

_SHAPES = {
    "front.even": ((8, 6), torch.float32),
    "front.uneven": ((5, 3), torch.float32),
    "front.half": ((6, 4), torch.bfloat16),
    "front.flags": ((9,), torch.bool),
    "back.double": ((7, 5), torch.float64),
    "back.row": ((1, 4), torch.float32),
    "back.counts": ((9,), torch.int64),
    "back.nothing": ((0, 3), torch.float32),
}


def whole_model(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: (torch.randn(shape, generator=generator) * 9).to(dtype) for n, (shape, dtype) in _SHAPES.items()}


def whole_tree(seed: int) -> dict[str, Any]:
    return tree_on(World(), {}, seed)


_meshes: dict[str, Axes] = {}  # laid out once; every rank is a process


def tree_on(world: World, axes: Axes, seed: int) -> dict[str, Any]:
    """The state with this seed, as a rank has it on that mesh: rows are divided along `shard`, columns along `tensor`."""
    if _meshes.get("now") != axes:
        world.mesh = None
        world.lay_out(axes)
        _meshes["now"] = axes
    stage = world.mesh.get_local_rank("pipeline") if axes.get("pipeline", 1) > 1 else None
    here = {n: t for n, t in whole_model(seed).items() if stage is None or n.startswith(("front", "back")[stage])}
    model = {name: _spread(tensor, world, axes) for name, tensor in here.items()}
    if "front.even" in model:
        model["front.tied"] = model["front.even"]
    names = list(whole_model(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    photo = torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last)
    return {
        "progress": {"step": seed, "loss": 0.25, "best": None},
        "model": {**model, "photo": photo},
        "optimizer": {
            "state": {
                names.index(n): {"step": torch.tensor(float(seed)), "moment": _spread(t * 2, world, axes)}
                for n, t in here.items()
                if t.is_floating_point()
            },
            "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}],
        },
        "random": torch.arange(16, dtype=torch.uint8) + seed,
        "pair": (1, torch.tensor(seed)),
    }


def _spread(tensor: Tensor, world: World, axes: Axes) -> Tensor:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    names = [name for name in ("data", "shard", "tensor") if axes.get(name, 1) > 1]
    if not names:
        return tensor.clone()
    along: dict[str, Any] = {"data": Replicate(), "shard": Shard(0), "tensor": Shard(tensor.ndim - 1)}
    if tensor.ndim == 1 and "shard" in names:
        along["tensor"] = Replicate()
    mesh = world.mesh[tuple(names)] if len(names) < world.mesh.ndim else world.mesh
    return distribute_tensor(tensor.clone(), mesh, [along[name] for name in names], src_data_rank=None)


def blank(tree: Any) -> Any:
    """The same layout, other values."""
    _, tensors = encode(tree)
    for tensor in local_parts(tensors).values():
        tensor.fill_(1)
    return tree


def differences(a: Any, b: Any, place: str = "") -> list[str]:
    if isinstance(a, Tensor):
        (one,), (other,) = local_parts({"": a}).values(), local_parts({"": b}).values()
        same = type(a) is type(b) and one.dtype == other.dtype and a.stride() == b.stride() and torch.equal(one, other)
        return [] if same else [place]
    if type(a) is not type(b):
        return [f"{place}: {a!r} {b!r}"]
    if isinstance(a, dict):
        found = [f"{place}: {sorted(map(str, a))} {sorted(map(str, b))}"] if a.keys() != b.keys() else []
        return found + [line for key in a.keys() & b.keys() for line in differences(a[key], b[key], f"{place}.{key}")]
    if isinstance(a, list | tuple):
        return [line for i, (x, y) in enumerate(zip(a, b, strict=True)) for line in differences(x, y, f"{place}.{i}")]
    return [] if a == b else [f"{place}: {a!r} {b!r}"]


@contextmanager
def nothing_pickled() -> Iterator[None]:
    from torch.distributed import distributed_c10d as collectives

    def refuse(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("pickled")

    places = [(pickle, n) for n in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler")]
    places += [(torch, "save"), (torch, "load"), (collectives, "_pickler"), (collectives, "_unpickler")]
    before = [getattr(where, name) for where, name in places]
    try:
        for where, name in places:
            setattr(where, name, refuse)
        yield
    finally:
        for (where, name), was in zip(places, before, strict=True):
            setattr(where, name, was)


# ---- what ranks do ----


def opened(world: World, folder: Path) -> ShardedCheckpoints:
    return ShardedCheckpoints(Checkpoints(folder), Peers(world, timeout_s=50))


def save(world: World, folder: Path, layouts: Sequence[Axes]) -> None:
    """Step n on the n-th mesh."""
    checkpoints = opened(world, folder)
    for step, axes in enumerate(layouts, 1):
        taken = snapshot(tree_on(world, axes, step))
        with nothing_pickled():
            checkpoints.write(step, taken)
    checkpoints.peers.close()


def load(world: World, folder: Path, layouts: Sequence[Axes]) -> list[str]:
    """Every checkpoint onto every mesh; returns what differs."""
    checkpoints = opened(world, folder)
    wrong = []
    for axes in layouts:
        for step in checkpoints.checkpoints.steps():
            target = blank(tree_on(world, axes, step))
            inside = {id(tensor) for tensor in encode(target["model"])[1].values()}
            with nothing_pickled():
                found = checkpoints.load(step, into=target)
            assert len(inside) == len({id(tensor) for tensor in encode(found["model"])[1].values()})
            wrong += [f"step {step} onto {axes}: {line}" for line in differences(tree_on(world, axes, step), found)]
    return wrong


def load_whole(world: World, folder: Path) -> list[str]:
    """Without a tree to fill: all of it, on every rank."""
    checkpoints = opened(world, folder)
    steps = checkpoints.checkpoints.steps()
    return [line for step in steps for line in differences(whole_tree(step), checkpoints.load(step))]


def message(work: Callable[[], Any]) -> str:
    try:
        work()
    except FlatoutError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """A limit that the kernel keeps: no file of this process grows beyond."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_on_a_full_disk(world: World, folder: Path, victim: int) -> list[str]:
    checkpoints = opened(world, folder)
    taken = snapshot(tree_on(world, {"shard": world.size}, 1))
    said = []
    for step, size in ((1, -1), (2, 100), (1, 100), (3, -1)):
        with full_disk(size if world.rank == victim else resource.RLIM_INFINITY):
            said.append(message(lambda step=step: checkpoints.write(step, taken)))  # type: ignore[misc]
    return said


def save_what_cannot_be_kept(world: World, folder: Path) -> list[str]:
    from torch.distributed.tensor import DTensor, Partial

    checkpoints = opened(world, folder)
    world.lay_out({"shard": world.size})
    partial = DTensor.from_local(torch.ones(3), world.mesh, [Partial()])
    trees: list[Any] = [{"w": torch.ones(2 + world.rank)}, {"a": {"w": partial}}, {"w": torch.ones(2, dtype=torch.complex64)}]
    said = [message(lambda tree=tree: checkpoints.write(1, snapshot(tree))) for tree in trees]  # type: ignore[misc]
    said.append(message(lambda: checkpoints.write(world.rank, snapshot({"w": torch.ones(2)}))))
    checkpoints.write(1, snapshot({"w": torch.ones(2)}))
    said.append(message(lambda: checkpoints.load(1, into={"w": torch.ones(3)})))
    return said


def save_with_one_that_does_not_come(world: World, folder: Path) -> list[str]:
    checkpoints = ShardedCheckpoints(Checkpoints(folder), Peers(world, timeout_s=1))
    said = message(lambda: checkpoints.write(1, snapshot({"w": torch.ones(2)}))) if world.rank == 0 else ""
    world.store.set("late", "1") if world.rank == 0 else world.store.wait(["late"])
    return [said]


def save_to_two_disks(world: World, folder: Path) -> list[str]:
    checkpoints = opened(world, folder / str(world.rank))
    return [message(lambda: checkpoints.write(1, snapshot({"w": torch.ones(2)})))]


def save_until_killed(world: World, folder: Path, victim: int) -> list[str]:
    """The victim dies in the middle of its second file."""
    checkpoints = opened(world, folder)
    taken = snapshot(tree_on(world, {"shard": world.size}, 1))
    checkpoints.write(1, taken)
    left = 3

    def to_host(tensor: Tensor) -> Tensor:
        nonlocal left
        left -= 1
        if world.rank == victim and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensor

    return [message(lambda: checkpoints.write(2, taken, to_host)), message(lambda: checkpoints.write(3, taken))]


def load_latest(world: World, folder: Path, axes: Axes) -> tuple[int, list[str], list[tuple[int, str]]]:
    checkpoints = opened(world, folder)
    told: list[tuple[int, str]] = []
    found = checkpoints.load_latest(lambda step, why: told.append((step, why)), into=blank(tree_on(world, axes, 1)))
    assert found is not None
    return found[0], differences(tree_on(world, axes, found[0]), found[1]), told


def save_beside_training(world: World, folder: Path) -> list[str]:
    """Threads write what was there when the loop took it, while the loop goes on and talks to the others."""
    checkpoints = opened(world, folder)
    axes = {"shard": world.size}
    live = tree_on(world, axes, 1)
    weights = local_parts(encode(live)[1])
    thread = threading.Thread(target=checkpoints.write, args=(1, snapshot(live)))
    thread.start()
    writing = 1.0
    while writing:
        for weight in weights.values():
            weight.fill_(0)
        writers = torch.tensor([float(thread.is_alive())])
        dist.all_reduce(writers)
        writing = writers.item()
    thread.join()
    return differences(tree_on(world, axes, 1), checkpoints.load(1, into=blank(tree_on(world, axes, 1))))


def export_all(world: World, folder: Path, layouts: Sequence[Axes]) -> list[str]:
    peers = Peers(world, timeout_s=50)
    said = []
    for number, axes in enumerate(layouts):
        model = tree_on(world, axes, 1)["model"]
        said.append(message(lambda model=model, n=number: export(folder / f"{n}.safetensors", model, peers)))  # type: ignore[misc]
    model = tree_on(world, {"shard": world.size}, 1)["model"]
    with full_disk(300 if world.rank == 0 else resource.RLIM_INFINITY):
        said.append(message(lambda: export(folder / "full.safetensors", model, peers)))

    def die(tensor: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return tensor

    last = world.size - 1
    arguments: Any = (die,) if world.rank == last else ()
    said.append(message(lambda: export(folder / "killed.safetensors", model, peers, *arguments)))
    return said


def trained(world: World, axes: Axes) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small network that FSDP2 and, where asked, tensor parallelism have divided, after a step of AdamW."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 5))
    if world.size > 1:
        world.lay_out(axes)
        if "tensor" in axes:
            parallelize_module(model, world.mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        rest = tuple(name for name in ("data", "shard") if name in axes)
        fully_shard(model, mesh=world.mesh[rest] if "tensor" in axes else world.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    model(torch.ones(4, 6)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def kept(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}


def save_trained(world: World, folder: Path, layouts: Sequence[Axes]) -> None:
    checkpoints = opened(world, folder)
    for step, axes in enumerate(layouts, 1):
        checkpoints.write(step, snapshot(kept(*trained(world, axes))))


def load_trained(world: World, folder: Path, axes: Axes) -> list[str]:
    """Filled where they are: what the model computes with has the values."""
    checkpoints = opened(world, folder)
    wrong = []
    for step in checkpoints.checkpoints.steps():
        model, optimizer = trained(world, axes)
        tree = kept(model, optimizer)
        expected = snapshot(tree).copies
        blank(tree)
        checkpoints.load(step, into=tree)
        for name, part in local_parts(encode(kept(model, optimizer))[1]).items():
            if not torch.allclose(part, expected[name], rtol=1e-5, atol=1e-6):
                wrong.append(f"step {step}: {name}")
    return wrong


def read_by_torch_alone(world: World, folder: Path) -> list[str]:
    """torch.distributed.checkpoint reads what we wrote, and we read what it wrote."""
    import torch.distributed.checkpoint as dcp

    from flatout.store.sharded_files import TensorFiles

    axes = {"shard": world.size}
    _, expected = encode(tree_on(world, axes, 1))
    _, target = encode(blank(tree_on(world, axes, 1)))
    opened(world, folder).write(1, snapshot(tree_on(world, axes, 1)))
    dcp.load(dict(target), storage_reader=dcp.HuggingFaceStorageReader(str(folder / "step-000000001")))
    wrong = differences(dict(expected), dict(target))

    plain = {name: tensor.contiguous() for name, tensor in expected.items()}
    writer = dcp.HuggingFaceStorageWriter(str(folder / "theirs"), save_distributed=True)
    dcp.save(dict(plain), storage_writer=writer)
    blanked = {name: blank({name: tensor.clone()})[name] for name, tensor in plain.items()}
    theirs = folder / "theirs"
    TensorFiles(theirs, [path.name for path in theirs.iterdir()]).read_into(blanked)
    return wrong + differences(plain, blanked)
