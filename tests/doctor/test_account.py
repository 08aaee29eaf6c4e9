"""The ledger of a step on traces that were made up: it adds up, and each moment is where it belongs."""

from __future__ import annotations

import random

import pytest

from flatout.doctor import kinds, marks
from flatout.doctor.account import CHECKPOINT, DATA, EVALUATION, LOGGING, OPTIMIZER, PYTHON, ROWS, UNATTRIBUTED, account
from flatout.doctor.marks import Mark
from flatout.doctor.trace import DeviceWork, Span, ThreadSample, Trace

US = 1_000


def marked(start: int, end: int, kind: str, where: str = "train.py:1") -> Span:
    return Span(start * US, end * US, f"flatout#{kind}", Mark(kind, where))


def operator(start: int, end: int, name: str) -> Span:
    return Span(start * US, end * US, name)


def kernel(start: int, end: int, name: str, launched: int | None = None) -> DeviceWork:
    return DeviceWork(start * US, end * US, name, None if launched is None else launched * US)


def window(end: int, host: list[Span], **more: object) -> Trace:
    return Trace(0, end * US, 1, host, **more)  # type: ignore[arg-type]


def test_on_a_cpu_each_operator_is_in_the_row_of_its_kind() -> None:
    told = account(
        window(
            1000,
            [
                marked(0, 300, marks.DATA, "train.py:4"),
                operator(50, 250, "aten::stack"),  # inside of the loader: it is the loader's time
                marked(300, 600, marks.FORWARD, "train.py:5"),
                operator(310, 500, "aten::linear"),
                operator(320, 490, "aten::addmm"),
                operator(510, 590, "aten::relu"),
                marked(600, 900, marks.BACKWARD, "train.py:6"),
                operator(610, 890, "aten::convolution_backward"),
                marked(900, 1000, marks.STEP, "train.py:7"),
                operator(905, 995, "aten::_fused_adamw_"),
            ],
        )
    )
    assert told.rows[DATA] == 300 * US
    assert told.rows[kinds.MATMUL] == 190 * US
    assert told.rows[kinds.MEMORY] == 80 * US
    assert told.rows[kinds.CONVOLUTION] == 280 * US
    assert told.rows[OPTIMIZER] == 100 * US
    assert told.rows[kinds.LAUNCH] == 50 * US  # between the operators
    assert told.where(DATA) == "train.py:4" and told.where(kinds.MATMUL) == "train.py:5"
    assert sum(told.rows.values()) == told.wall == 1000 * US


def test_what_calling_an_operator_costs_is_told_from_what_it_computes() -> None:
    host = [marked(0, 100, marks.FORWARD), *(operator(10 * k, 10 * k + 8, "aten::add") for k in range(10))]
    told = account(window(100, host), operator_ns=5 * US)
    assert told.rows[kinds.MEMORY] == 10 * 3 * US
    assert told.rows[kinds.LAUNCH] == 70 * US


def test_long_stretches_without_an_operator_belong_to_the_line_that_was_seen_there() -> None:
    samples = [ThreadSample(t * US, "train.py:9") for t in (300, 500)] + [ThreadSample(700 * US, "train.py:12")]
    told = account(window(1000, [operator(0, 100, "aten::mm"), operator(900, 1000, "aten::mm")], samples=samples))
    assert told.rows[PYTHON] == 800 * US
    assert told.lines[PYTHON, "train.py:9"] == 500 * US and told.lines[PYTHON, "train.py:12"] == 300 * US
    unseen = account(window(100_000, [operator(0, 100, "aten::mm")]))
    assert unseen.rows[UNATTRIBUTED] == 99_900 * US


def test_torch_itself_between_two_operators_is_no_code_of_the_script() -> None:
    told = account(window(1000, [operator(0, 100, "aten::mm")], samples=[ThreadSample(500 * US, "train.py:9", in_torch=True)]))
    assert told.rows[PYTHON] == 0 and told.rows[kinds.LAUNCH] == 900 * US


def test_the_passes_of_a_closure_are_no_part_of_the_optimizer() -> None:
    told = account(
        window(
            100,
            [
                operator(0, 100, "Optimizer.step#LBFGS.step"),
                marked(10, 50, marks.FORWARD),
                operator(10, 50, "aten::mm"),
                marked(50, 80, marks.BACKWARD),
                operator(50, 80, "aten::mm"),
                operator(85, 95, "aten::add_"),
            ],
        )
    )
    assert told.rows[kinds.MATMUL] == 70 * US and told.rows[OPTIMIZER] == 30 * US


def test_logging_and_checkpoints_take_everything_inside_of_them() -> None:
    host = [
        marked(0, 40, marks.LOGGING, "train.py:20"),
        operator(5, 35, "aten::copy_"),
        marked(50, 90, marks.CHECKPOINT, "train.py:30"),
        operator(55, 85, "aten::to"),
    ]
    told = account(window(100, host))
    assert told.rows[LOGGING] == 40 * US and told.rows[CHECKPOINT] == 40 * US
    assert told.where(CHECKPOINT) == "train.py:30"


def test_evaluations_are_left_out() -> None:
    told = account(window(100, [operator(0, 100, "aten::mm")], left_out=[(20 * US, 60 * US)]))
    assert told.wall == 60 * US and told.rows[kinds.MATMUL] == 60 * US and told.rows[EVALUATION] == 0


def test_while_the_device_works_the_time_is_its_own_whatever_the_host_does() -> None:
    told = account(
        window(
            100,
            [marked(0, 100, marks.FORWARD), operator(0, 5, "cudaLaunchKernel"), operator(5, 100, "cudaStreamSynchronize")],
            device=[kernel(10, 60, "sm90_xmma_gemm_bf16", 2), kernel(60, 90, "elementwise_kernel", 3)],
        )
    )
    assert told.rows[kinds.MATMUL] == 50 * US and told.rows[kinds.MEMORY] == 30 * US
    assert told.device_busy == 80 * US
    assert sum(told.rows.values()) == 100 * US


def test_a_device_that_stands_still_is_charged_to_what_the_host_did() -> None:
    told = account(
        window(
            1000,
            [
                marked(0, 400, marks.DATA, "train.py:4"),
                marked(400, 450, marks.COPY, "train.py:5"),
                marked(450, 900, marks.FORWARD, "train.py:6"),
                *(operator(at, at + 40, "aten::relu") for at in range(460, 900, 50)),
            ],
            device=[kernel(900, 1000, "elementwise_kernel", 890)],
        )
    )
    assert told.rows[DATA] == 400 * US
    assert told.rows[kinds.COPY] == 50 * US
    assert told.rows[kinds.LAUNCH] == 450 * US
    assert told.rows[kinds.MEMORY] == 100 * US


def test_kernels_of_the_update_are_the_optimizer_s() -> None:
    told = account(
        window(
            100,
            [marked(0, 20, marks.STEP), operator(2, 18, "cudaLaunchKernel")],
            device=[kernel(30, 80, "multi_tensor_apply_kernel", 5)],
        )
    )
    assert told.rows[OPTIMIZER] == 70 * US  # the kernel, and the launching that the device waited for


def test_reads_are_charged_with_the_idle_time_that_they_cause() -> None:
    """The host would be ahead of the device if it did not stand still; where it could not be, launching is to blame."""
    host = [
        marked(0, 10, marks.FORWARD),
        operator(0, 10, "aten::mm"),
        marked(10, 80, marks.READ, "train.py:9"),
        operator(10, 80, "cudaStreamSynchronize"),
        marked(80, 100, marks.FORWARD),
        operator(80, 99, "aten::mm"),
    ]
    told = account(window(100, host, device=[kernel(5, 78, "gemm", 1)]))
    assert told.rows[kinds.SYNC] == pytest.approx(27 * US) and told.where(kinds.SYNC) == "train.py:9"
    slow_host = [*host[:4], marked(80, 400, marks.FORWARD), *(operator(a, a + 35, "aten::mm") for a in range(80, 400, 40))]
    told = account(window(400, slow_host, device=[kernel(5, 78, "gemm", 1)]))
    assert told.rows[kinds.LAUNCH] > 300 * US


def test_a_read_is_to_blame_for_the_step_after_it_alone() -> None:
    host = [
        marked(0, 10, marks.READ, "train.py:9"),
        operator(0, 10, "cudaStreamSynchronize"),
        *(operator(at, at + 4, "aten::mm") for at in range(10, 200, 100)),
    ]
    work = [kernel(at + 6, at + 56, "gemm", at) for at in range(10, 200, 100)]
    told = account(Trace(0, 200 * US, 2, host, device=work))
    assert told.rows[kinds.SYNC] == pytest.approx(64 * US)  # all that is idle until 100 us after it
    assert told.rows[kinds.LAUNCH] == pytest.approx(36 * US) and told.rows[kinds.MATMUL] == 100 * US


def test_memory_that_is_given_back_is_charged_with_the_idle_time_that_it_causes() -> None:
    host = [
        operator(0, 8, "aten::mm"),
        operator(2, 6, "cudaMalloc"),
        operator(10, 70, "cudaFree"),
        operator(80, 99, "aten::mm"),
    ]
    told = account(window(100, host, device=[kernel(8, 60, "gemm", 1)]))
    assert told.rows[kinds.ALLOCATION] == pytest.approx(48 * US) and told.rows[kinds.LAUNCH] == 0


def test_a_read_of_an_evaluation_is_to_blame_for_no_step() -> None:
    host = [
        marked(0, 40, marks.READ, "eval.py:5"),
        operator(0, 40, "cudaStreamSynchronize"),
        operator(60, 64, "aten::mm"),
    ]
    told = account(window(150, host, device=[kernel(66, 130, "gemm", 60)], left_out=[(0, 50 * US)]))
    assert told.rows[kinds.SYNC] == 0 and told.rows[kinds.LAUNCH] == pytest.approx(36 * US)


def test_an_evaluation_in_between_does_not_part_a_step_from_its_read() -> None:
    """A step is 100 us without it, and 60 us of the first are idle."""
    host = [
        marked(0, 30, marks.READ, "train.py:9"),
        operator(0, 30, "cudaStreamSynchronize"),
        operator(1030, 1040, "aten::mm"),
    ]
    told = account(Trace(0, 1200 * US, 2, host, device=[kernel(1040, 1180, "gemm", 1035)], left_out=[(30 * US, 1030 * US)]))
    assert told.rows[kinds.SYNC] == pytest.approx(60 * US)


def test_memory_that_is_asked_for_is_no_stall() -> None:
    """The device works on meanwhile; and what is asked of a pool of the driver's is a matter of calling."""
    for name, row in (("cudaMalloc", kinds.ALLOCATION), ("cudaMallocAsync", kinds.LAUNCH)):
        host = [operator(0, 8, "aten::mm"), operator(20, 30, name), operator(80, 84, "aten::mm")]
        told = account(window(100, host, device=[kernel(30, 80, "gemm", 1)]))
        assert told.rows[kinds.LAUNCH] == pytest.approx(40 * US if row == kinds.ALLOCATION else 50 * US)
        assert told.rows[kinds.ALLOCATION] == pytest.approx(10 * US if row == kinds.ALLOCATION else 0)


def test_a_copy_beside_a_kernel_costs_nothing() -> None:
    device = [kernel(0, 80, "gemm"), kernel(40, 100, "Memcpy HtoD (Pinned -> Device)")]
    told = account(window(100, [], device=device))
    assert told.rows[kinds.MATMUL] == 80 * US and told.rows[kinds.COPY] == 20 * US


@pytest.mark.parametrize("seed", range(20))
def test_it_always_adds_up(seed: int) -> None:
    draw = random.Random(seed)
    names = [
        "aten::mm",
        "aten::add",
        "aten::empty",
        "cudaLaunchKernel",
        "cudaStreamSynchronize",
        "cudaFree",
        "nccl:all_reduce",
        "aten::conv2d",
    ]
    every = [marks.DATA, marks.COPY, marks.READ, marks.FORWARD, marks.BACKWARD, marks.LOGGING, marks.CHECKPOINT, marks.STEP]

    def nested(start: int, end: int, depth: int) -> list[Span]:
        spans, at = [], start
        while at < end - 5 and depth < 5:
            first = at + draw.randrange(0, 20)
            last = first + draw.randrange(1, 60)
            if last > end:
                break
            is_mark = draw.random() < 0.4
            spans.append(marked(first, last, draw.choice(every)) if is_mark else operator(first, last, draw.choice(names)))
            spans += nested(first, last, depth + 1)
            at = last
        return spans

    device = []
    at = 0
    while draw.random() < 0.95 and at < 900 and seed % 2:
        at += draw.randrange(0, 30)
        device.append(
            kernel(at, at + draw.randrange(1, 50), draw.choice(["gemm", "Memcpy HtoD", "reduce", "odd"]), draw.randrange(1000))
        )
    samples = [ThreadSample(draw.randrange(1000 * US), draw.choice(["a.py:1", "a.py:2", ""])) for _ in range(5)]
    left_out = [(draw.randrange(500) * US, draw.randrange(500, 1000) * US)] if seed % 3 == 0 else []
    host = nested(-50, 1100, 0)
    told = account(window(1000, host, device=device, samples=samples, left_out=left_out), operator_ns=2000)
    assert set(told.rows) == set(ROWS)
    assert all(spent >= 0 for spent in told.rows.values())
    assert sum(told.rows.values()) == pytest.approx(told.wall, rel=1e-9)
