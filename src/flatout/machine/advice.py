"""Problems of this machine's setup, their cost, and the remedy. Pure functions of facts and ceilings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatout.base.units import show_bytes
from flatout.machine.ceilings import Ceilings
from flatout.machine.facts import Facts
from flatout.machine.others_work import CpuUse

_SMALL_SHM_BYTES = 2**30
_FEW_OPEN_FILES = 1024
_SWAP_WORTH_SAYING_BYTES = 512 * 10**6
_HARMFUL_THROTTLES = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "external power brake")
_OLDEST_DRIVER = {12: 525, 13: 580}  # the first driver branch that runs this major version of CUDA


@dataclass(frozen=True)
class Advice:
    name: str
    what: str
    cost: str
    remedy: str


def advise(facts: Facts, ceilings: Ceilings) -> list[Advice]:
    """Most serious first. GPU links must have been read under load: idle links slow down to save power."""
    return [advice for check in _CHECKS for advice in check(facts, ceilings)]


def _unused_gpu(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    if not facts.gpus or facts.accelerators or _driver_is_old(facts):
        return
    if facts.cuda is None:
        why, remedy = f"torch {facts.torch} was built without CUDA", "install a build of torch with CUDA"
    else:
        why, remedy = "this process has no access to it", "check CUDA_VISIBLE_DEVICES and the container's GPU option"
    yield Advice("unused GPU", f"torch can't use the GPU ({facts.gpus[0].name}): {why}", "runs use the CPU", remedy)


def _old_driver(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    if facts.cuda is not None and _driver_is_old(facts):
        oldest = _OLDEST_DRIVER[_major(facts.cuda)]
        yield Advice(
            "old driver",
            f"the NVIDIA driver is {facts.driver}; CUDA {facts.cuda} (torch {facts.torch}) needs {oldest} or newer",
            "the GPU, or some of its kernels, can't be used",
            f"update the driver to {oldest} or newer, or install a torch built for an older CUDA",
        )


def _slow_link(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    for gpu in facts.gpus:
        now, best = (gpu.pcie_generation, gpu.pcie_width), (gpu.pcie_generation_max, gpu.pcie_width_max)
        if gpu.device is None or now[0] is None or now[1] is None or best[0] is None or best[1] is None:
            continue
        share = now[1] / best[1] * 2.0 ** (now[0] - best[0])  # each PCIe generation doubles the rate
        if share < 1:
            yield Advice(
                "slow link",
                f"{gpu.device} is connected by PCIe {now[0]} x{now[1]}; it supports PCIe {best[0]} x{best[1]}",
                f"copies between host and GPU reach about {share:.0%} of full speed",
                "reseat the card or move it to a full slot; in the BIOS set the slot's speed and width to automatic",
            )


def _throttled(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    for gpu in facts.gpus:
        reasons = [reason for reason in gpu.throttle_reasons if reason in _HARMFUL_THROTTLES]
        if gpu.device is not None and reasons:
            known = gpu.clock_mhz is not None and gpu.clock_max_mhz is not None
            yield Advice(
                "throttled",
                f"{gpu.device} is throttled: {' and '.join(reasons)}",
                f"its clock was {gpu.clock_mhz} of {gpu.clock_max_mhz} MHz" if known else "its clock is reduced",
                "improve cooling, check the power supply and its cables; details: `nvidia-smi -q -d PERFORMANCE`",
            )


def _power_cap(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    for gpu in facts.gpus:
        if gpu.device is None or gpu.power_limit_w is None or gpu.power_limit_max_w is None:
            continue
        if gpu.power_limit_w < 0.98 * gpu.power_limit_max_w:
            yield Advice(
                "power cap",
                f"{gpu.device} is limited to {gpu.power_limit_w:.0f} W of {gpu.power_limit_max_w:.0f} W",
                "large matrix products run slower (but use less energy); the ceilings were measured with this limit",
                f"unless you want to save energy: nvidia-smi -i {gpu.uuid} -pl {gpu.power_limit_max_w:.0f}",
            )


def _no_pinning(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    why = ceilings.unavailable.get("host_to_device_pinned_bytes_per_s")
    if ceilings.device != "cpu" and why is not None:
        yield Advice(
            "no pinned memory",
            why,
            "copies to the device are slower and don't overlap with training",
            "give the container more memory, or raise the locked-memory limit (`ulimit -l unlimited`)",
        )


def _too_many_threads(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    cores = facts.cpu.usable_cores
    if facts.torch_threads > cores:
        yield Advice(
            "too many threads",
            f"torch uses {facts.torch_threads} threads, but this process may use only {_cores(cores)}",
            "threads wait for each other: CPU work is often several times slower",
            f"set OMP_NUM_THREADS={cores}",
        )


def _idle_cores(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    physical = min(facts.cpu.usable_cores, facts.cpu.physical_cores or facts.cpu.usable_cores)
    if ceilings.device == "cpu" and facts.torch_threads * 2 <= physical:
        yield Advice(
            "idle cores",
            f"torch uses {facts.torch_threads} of {_cores(physical)}",
            "at least half of the cores are idle during training",
            f"set OMP_NUM_THREADS={physical} (torchrun sets it to 1)",
        )


def _busy(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    used = None if facts.others_cores is None else CpuUse(facts.others_cores, facts.cpu.affinity_cores)
    if used is not None and used.is_busy:
        yield Advice(
            "busy machine",
            f"other processes use {used.in_words()}",
            "what is measured now is too low, and training on a CPU is slower, with several threads many times",
            "stop the other processes, and measure again with `flatout probe --fresh`",
        )


def _small_shm(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    if facts.shm_bytes is not None and facts.shm_bytes < _SMALL_SHM_BYTES:
        yield Advice(
            "small /dev/shm",
            f"/dev/shm has {show_bytes(facts.shm_bytes)}",
            "data workers crash with a bus error when they pass batches",
            "start the container with --shm-size=8g or --ipc=host",
        )


def _few_open_files(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    if facts.open_files_limit is not None and facts.open_files_limit < _FEW_OPEN_FILES:
        yield Advice(
            "few open files",
            f"a process may open only {facts.open_files_limit} files",
            "worker processes and large data sets fail with 'too many open files'",
            "ulimit -n 65536",
        )


def _swapping(facts: Facts, ceilings: Ceilings) -> Iterator[Advice]:
    if facts.swap_used_bytes > _SWAP_WORTH_SAYING_BYTES:
        yield Advice(
            "swap in use",
            f"{show_bytes(facts.swap_used_bytes)} of memory is swapped out to disk",
            "every access to swapped memory waits for the disk",
            "stop other programs that use memory, or add memory",
        )


_CHECKS: tuple[Callable[[Facts, Ceilings], Iterator[Advice]], ...] = (
    _unused_gpu,
    _old_driver,
    _slow_link,
    _throttled,
    _power_cap,
    _no_pinning,
    _too_many_threads,
    _idle_cores,
    _busy,
    _small_shm,
    _few_open_files,
    _swapping,
)


def _driver_is_old(facts: Facts) -> bool:
    if facts.driver is None or facts.cuda is None:
        return False
    return _major(facts.driver) < _OLDEST_DRIVER.get(_major(facts.cuda), 0)


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
