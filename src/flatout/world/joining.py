"""How a process finds the others: from variables of torchrun, Slurm, Kubeflow or Open MPI, or an existing process group.

Keys in the store are prefixed with torchrun's restart count. Otherwise restarted ranks would connect to the addresses that the
dead ranks left there.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from flatout.base.errors import MachineError, UsageError
from flatout.base.units import show_seconds
from flatout.world.world import ProcessWorld, World

_torch: Any = dist  # torch declares only some of its names

JOIN_TIMEOUT_S = 300.0
EXCHANGE_TIMEOUT_S = 1800.0  # limit for one exchange: the other processes wait while one plans
_meetings = itertools.count()  # a process may train several times with the same other processes
_OF_THIS_WORLD = ("TORCHELASTIC_", "GROUP_", "ROLE_")  # torchrun variables that describe more than a process's place
_PLACES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PET_NNODES", "PET_NODE_RANK", "SLURM_STEP_ID", "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
)  # fmt: skip
_BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}


@dataclass(frozen=True)
class ProcessPlace:
    """The rank and address that a launcher gave this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    restarts: int = 0
    hosted: bool = False  # the launcher runs the store at that address; otherwise rank 0 does


def join(device: torch.device, timeout_s: float = JOIN_TIMEOUT_S) -> World:
    """Wait until all processes of this world have joined. Without a launcher the world is this process alone."""
    if dist.is_available() and dist.is_initialized():
        local = os.environ.get("LOCAL_RANK", "0"), os.environ.get("LOCAL_WORLD_SIZE", "1")
        return ProcessWorld(device, int(local[0]), int(local[1]), _torch.distributed_c10d._get_default_store(), ours=False)
    place = read_place(os.environ)
    if place is None or place.size == 1:
        return World()
    device = _own_device(device, place)
    store = _meet(place, timeout_s)
    timeout = timedelta(seconds=max(timeout_s, EXCHANGE_TIMEOUT_S))
    backend = _BACKENDS.get(device.type, "gloo")
    index: Any = {"device_id": device} if device.type == "cuda" else {}
    if "OMP_NUM_THREADS" not in os.environ:  # otherwise every process of a host would use all its cores
        torch.set_num_threads(max(1, torch.get_num_threads() // place.local_size))
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout, **index)
    return ProcessWorld(device, place.local_rank, place.local_size, store, ours=True)


def meet(timeout_s: float = JOIN_TIMEOUT_S) -> tuple[ProcessPlace, Any] | None:
    """Wait until all processes are there, for those that work side by side without exchanges: the place of this one, and the
    store where they met. None: it is alone."""
    place = own_place()
    if place is None or place.size == 1:
        return None
    if dist.is_available() and dist.is_initialized():
        store = _torch.distributed_c10d._get_default_store()
        return place, _torch.PrefixStore(f"flatout/beside/{next(_meetings)}", store)
    return place, _meet(place, timeout_s)


def _own_device(device: torch.device, place: ProcessPlace) -> torch.device:
    """The device of this host that belongs to this process. It becomes torch's current device."""
    if device.type == "cpu":
        return device
    index = place.local_rank % max(1, torch.accelerator.device_count())
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)


def own_place() -> ProcessPlace | None:
    """Rank and address given by the launcher; None if no launcher started this process."""
    return read_place(os.environ)


def is_launched() -> bool:
    """Whether a launcher started this process, even if it is the only one."""
    return own_place() is not None


def environment_beside(world: World, address: str, port: int) -> dict[str, str]:
    """Environment for a process with this process's rank in a second world, which meets at this address on rank 0."""
    told = {
        "RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": world.local_rank, "LOCAL_WORLD_SIZE": world.local_size,
        "MASTER_ADDR": address, "MASTER_PORT": port,
    }  # fmt: skip
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THIS_WORLD)}
    return ours | {name: str(value) for name, value in told.items()}


def leave_launcher(environment: MutableMapping[str, str]) -> None:
    """Forget the place that a launcher gave to the process that started this one."""
    for name in _PLACES:
        environment.pop(name, None)


def is_first() -> bool:
    """Whether this is rank 0, known from the launcher's variables before the processes have connected."""
    place = read_place(os.environ)
    return place is None or place.rank == 0


def read_place(environment: Mapping[str, str]) -> ProcessPlace | None:
    """None if no launcher started this process."""
    for reader in (_of_torchrun, _of_kubeflow, _of_slurm, _of_open_mpi):
        if (place := reader(environment)) is not None:
            if not 0 <= place.rank < place.size:
                raise UsageError(f"expected a rank between 0 and the world size - 1, this is rank {place.rank} of {place.size}")
            return place
    return None


def _meet(place: ProcessPlace, timeout_s: float) -> Any:
    where = f"{place.address}:{place.port}"
    hosts = place.rank == 0 and not place.hosted
    try:
        plain = _torch.TCPStore(
            place.address, place.port, is_master=hosts, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
        )
    except (RuntimeError, OSError) as error:  # torch raises both
        if hosts and ("EADDRINUSE" in str(error) or "already in use" in str(error).lower()):
            raise MachineError(
                f"port {place.port} on {place.address}, where the processes should meet, is in use: choose another one "
                "(MASTER_PORT, or --master-port for torchrun)"
            ) from error
        raise MachineError(
            f"rank {place.rank} of {place.size} could not connect to {where} within {show_seconds(timeout_s)}: is rank 0 "
            "running, and can this machine reach it?"
        ) from error
    store = _torch.PrefixStore(f"flatout/{place.restarts}/{next(_meetings)}", plain)
    store.set_timeout(timedelta(seconds=timeout_s))
    store.set(f"here/{place.rank}", "1")
    try:
        store.wait([f"here/{rank}" for rank in range(place.size)], timedelta(seconds=timeout_s))
    except (RuntimeError, OSError) as error:
        missing = [str(rank) for rank in range(place.size) if not store.check([f"here/{rank}"])]
        who = f"rank{'' if len(missing) == 1 else 's'} {', '.join(missing)}"
        raise MachineError(
            f"{place.size - len(missing)} of {place.size} processes joined at {where} within {show_seconds(timeout_s)}, {who} "
            "did not: look at their output, or start fewer processes"
        ) from error
    return store


def _of_torchrun(environment: Mapping[str, str]) -> ProcessPlace | None:
    """Also for variables set by hand or by an old Kubeflow operator, which set no local rank."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    if "MASTER_ADDR" not in environment and int(environment["WORLD_SIZE"] or 1) > 1:
        raise UsageError("RANK and WORLD_SIZE are set but MASTER_ADDR is not: start with torchrun, or set MASTER_ADDR")
    return ProcessPlace(
        rank=_number(environment, "RANK"),
        size=_number(environment, "WORLD_SIZE"),
        local_rank=_number(environment, "LOCAL_RANK", 0),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", 1),
        address=environment.get("MASTER_ADDR", "localhost"),
        port=_number(environment, "MASTER_PORT", 29500),
        restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _of_kubeflow(environment: Mapping[str, str]) -> ProcessPlace | None:
    if "PET_NNODES" not in environment or "PET_NODE_RANK" not in environment:
        return None
    processes = environment.get("PET_NPROC_PER_NODE", "1")
    if processes not in ("1", "auto", "cpu", "gpu"):
        raise UsageError(
            f"PET_NPROC_PER_NODE is {processes}: start several processes on a node with torchrun, "
            "`torchrun -m flatout run ...`, which reads these variables"
        )
    return ProcessPlace(
        rank=_number(environment, "PET_NODE_RANK"),
        size=_number(environment, "PET_NNODES"),
        local_rank=0,
        local_size=1,
        address=environment.get("PET_MASTER_ADDR", "localhost"),
        port=_number(environment, "PET_MASTER_PORT", 29500),
    )


def _of_slurm(environment: Mapping[str, str]) -> ProcessPlace | None:
    """Only for tasks started by srun: a batch script has the same variables but is a single process."""
    if "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment:
        return None
    job = environment.get("SLURM_JOB_ID", "0")
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "localhost"
    per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    return ProcessPlace(
        rank=_number(environment, "SLURM_PROCID"),
        size=_number(environment, "SLURM_STEP_NUM_TASKS", _number(environment, "SLURM_NTASKS", 1)),
        local_rank=_number(environment, "SLURM_LOCALID", 0),
        local_size=int(per_node[0]) if per_node else 1,
        address=environment.get("MASTER_ADDR") or first_host(hosts),
        port=_number(environment, "MASTER_PORT", 15000 + zlib.crc32(job.encode()) % 20000),
    )


def first_host(written: str) -> str:
    """Slurm's `gpu[03-07,12],login1` -> `gpu03`."""
    head = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", written.strip())
    return written if head is None else f"{head[1]}{head[2] or ''}{head[3] or ''}"


def _of_open_mpi(environment: Mapping[str, str]) -> ProcessPlace | None:
    if "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    size = _number(environment, "OMPI_COMM_WORLD_SIZE", 1)
    if "MASTER_ADDR" not in environment and size > 1:
        raise UsageError("the address of rank 0 is not set: mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=29500 ...")
    return ProcessPlace(
        rank=_number(environment, "OMPI_COMM_WORLD_RANK"),
        size=size,
        local_rank=_number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        local_size=_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", 1),
        address=environment.get("MASTER_ADDR", "localhost"),
        port=_number(environment, "MASTER_PORT", 29500),
    )


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    written = environment.get(name, "" if otherwise is None else str(otherwise))
    if not written.strip().isdigit():
        raise UsageError(f"the environment variable {name} must be a whole number, got {written!r}")
    return int(written)
