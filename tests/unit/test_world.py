"""Who a process is among others, what it gets of each batch, and what a bad layout or rendezvous is told."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flatout.base.errors import MachineError, UsageError
from flatout.data.feeds.ranks import RunShare
from flatout.data.order.keyed import Order
from flatout.engine.parallel.mesh import parse_mesh, show_mesh
from flatout.world import joining
from flatout.world.joining import ProcessPlace, first_host, join, read_place
from flatout.world.world import World

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node-0", "MASTER_PORT": "1234",
    "TORCHELASTIC_RESTART_COUNT": "3", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SLURM = {
    "SLURM_STEP_ID": "0", "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "2", "SLURM_JOB_ID": "77",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "gpu[03-04,09]",
}  # fmt: skip
KUBEFLOW = {
    "PET_NNODES": "4",
    "PET_NODE_RANK": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "job-0",
    "PET_MASTER_PORT": "29400",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "head",
}  # fmt: skip


def test_every_launcher_says_who_this_is() -> None:
    assert read_place({}) is None
    assert read_place(TORCHRUN) == ProcessPlace(5, 8, 1, 4, "node-0", 1234, restarts=3, hosted=True)
    slurm = read_place(SLURM)
    assert slurm is not None and (slurm.rank, slurm.size, slurm.local_rank, slurm.local_size) == (6, 8, 2, 4)
    assert slurm.address == "gpu03" and slurm == read_place(SLURM)  # the same port everywhere
    assert read_place(KUBEFLOW) == ProcessPlace(2, 4, 0, 1, "job-0", 29400)
    assert read_place(OPEN_MPI) == ProcessPlace(1, 2, 1, 2, "head", 29500)


def test_a_batch_script_of_slurm_is_one_process() -> None:
    assert read_place({name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}) is None


@pytest.mark.parametrize(
    ("written", "host"), [("a7", "a7"), ("gpu[03-07,12],b", "gpu03"), ("n[1,3]-ib", "n1-ib"), ("x,y", "x")]
)
def test_the_first_host_of_slurms_list(written: str, host: str) -> None:
    assert first_host(written) == host


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR is not"),
        ({**TORCHRUN, "RANK": "eight"}, "RANK must be a whole number, got 'eight'"),
        ({**TORCHRUN, "RANK": "8"}, "this is rank 8 of 8"),
        ({**KUBEFLOW, "PET_NPROC_PER_NODE": "4"}, "torchrun -m flatout run"),
        ({**OPEN_MPI, "MASTER_ADDR": ""} | {"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_variables_that_can_not_be(environment: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_place(environment)


def launched(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in {"LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "WORLD_SIZE": 2, **variables}.items():
        monkeypatch.setenv(name, str(value))


def test_a_port_in_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as taken:
        taken.bind(("::", 0))
        taken.listen()
        launched(monkeypatch, RANK=0, MASTER_PORT=taken.getsockname()[1])
        with pytest.raises(MachineError, match="is in use: choose another one"):
            join(torch.device("cpu"), timeout_s=2)


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_: Any = dist
    store = torch_.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    launched(monkeypatch, RANK=0, MASTER_PORT=store.port, TORCHELASTIC_USE_AGENT_STORE=True)
    with pytest.raises(MachineError, match=r"1 of 2 processes joined at localhost:.* rank 1 did not"):
        join(torch.device("cpu"), timeout_s=1)


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    launched(monkeypatch, RANK=1, MASTER_PORT=port)
    with pytest.raises(MachineError, match="rank 1 of 2 could not connect to localhost"):
        join(torch.device("cpu"), timeout_s=1)


def test_alone_nothing_is_exchanged() -> None:
    world, values = World(), torch.ones(3)
    assert world.sum_(values) is values and world.gather("a") == ["a"] and world.from_first(7) == 7 and world.any(True)
    assert world.share(10) == (0, 10) and world.is_first and joining.is_first()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("total", [None, 111, 112, 113])
def test_all_shares_together_are_the_batches_of_one_process(size: int, total: int | None) -> None:
    order, batch, steps = Order(3, [37]), 8, 14
    found: list[int] = []
    places = [0] * size
    orders = []
    for rank in range(size):
        world = World()
        world.data_rank, world.data_size = rank, size
        orders.append((world, RunShare(order, batch, world, total)))
    for step in range(steps if total is None else -(-total // batch)):
        rows = batch if total is None else min(batch, total - step * batch)
        for rank, (world, share) in enumerate(orders):
            low, high = world.share(rows)
            assert share.place(step * batch) == places[rank]
            found += share.rows(places[rank], places[rank] + high - low).tolist()
            places[rank] += high - low
    assert found == order.rows(0, len(found)).tolist() and len(found) == (total or steps * batch)


def test_a_batch_smaller_than_the_world_is_refused() -> None:
    world = World()
    world.data_size = 4
    with pytest.raises(UsageError, match="batch 3 can't be shared by 4 processes"):
        RunShare(Order(0, [9]), 3, world, None)


def test_a_mesh_is_read() -> None:
    assert parse_mesh("", 4) == {"pipeline": 1, "data": 4, "shard": 1, "context": 1, "tensor": 1}
    found = parse_mesh("tensor=2, data=3", 6)
    assert found == {"pipeline": 1, "data": 3, "shard": 1, "context": 1, "tensor": 2} and show_mesh(found) == "data=3,tensor=2"


@pytest.mark.parametrize(
    ("written", "size", "words"),
    [
        ("tensor=2,data=4", 6, "needs 8 processes, and there are 6: use --mesh data=3,tensor=2"),
        ("tensor=4", 6, "the sizes must multiply to 6"),
        ("data=2", 1, "remove it"),
        ("tensors=2", 2, "there is no axis 'tensors'; did you mean 'tensor'?"),
        ("data=two", 2, "data must be 1 or more, as in data=2,tensor=2, got 'two'"),
        ("data=0", 2, "data must be 1 or more, as in data=2,tensor=2, got '0'"),
        ("data=2,data=2", 4, "gives data twice"),
    ],
)
def test_a_mesh_that_can_not_be(written: str, size: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_mesh(written, size)
