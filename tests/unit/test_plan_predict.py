"""The work of a step by group, and its predicted time: checked by hand if possible, else by the direction of changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout as fo
from flatout.base.budget import Budget
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.measure.counts import Operation, OperatorCounts, count_step, fuse
from flatout.measure.groups import ATTENTION, CONVOLUTIONS, ELEMENTWISE, GROUPS, LOSS, MOVEMENT, NORMALISATION, PRODUCTS, UPDATE
from flatout.plan import work
from flatout.plan.knobs import graph
from flatout.plan.plan import Choice
from flatout.plan.predict import predict
from flatout.plan.prediction import BOUNDS, COMPUTE, INPUT, LAUNCH, MEMORY, TRANSFER, OperatorGroup, Prediction
from flatout.plan.situation import Situation
from flatout.plan.work import work_of
from flatout.recipe.build import build_job

ROWS, WIDTH, HIDDEN, CLASSES = 32, 16, 64, 10


def measured(value: float) -> MeasuredRate:
    return MeasuredRate(value, value, value, 10)


CPU = Ceilings(
    "cpu", {"fp32": measured(1e11), "bf16": measured(8e11)}, copy_bytes_per_s=measured(1e10), launch_s=measured(1e-6)
)
GPU = Ceilings(
    "cuda:0", {"fp32": measured(5e13), "tf32": measured(4e14), "bf16": measured(8e14)}, copy_bytes_per_s=measured(4e12),
    host_to_device_pinned_bytes_per_s=measured(5e10), launch_s=measured(1e-5),
)  # fmt: skip


class Blocks(nn.Module):
    """A job with work in every group."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        places = self.conv(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            places = block(places)
        out: Tensor = self.head(F.gelu(places).mean(1))
        return out


def job_of(model: Any = None, shape: tuple[int, ...] = (WIDTH,), batch: int = ROWS, **given: Any) -> Job:
    x, y = torch.randn(2 * batch, *shape), torch.arange(2 * batch) % CLASSES
    data = fo.data.arrays(x, y, classes=CLASSES, holdout=0.0)
    asked = {"model": model or {"mlp": {"hidden": [HIDDEN]}}, "batch": batch, "lr": 0.1, "budget": "9 steps", "evaluate": None}
    return build_job(fo.Recipe(data=data, **asked, **given))


def rich_job(**given: Any) -> Job:
    return job_of(lambda: Blocks(), (1, 6, 6), **given)


def by_group(counts: OperatorCounts, group: str) -> list[Operation]:
    return [one for one in counts.operations if one.group == group]


# the work


def test_an_mlp_counted_by_hand() -> None:
    counts = work_of(job_of(), Settings()).counts
    products = by_group(counts, PRODUCTS)
    forward = 2 * ROWS * (WIDTH * HIDDEN + HIDDEN * CLASSES)
    # in the backward, each weight needs a product, and so does each input with a gradient: all but the data
    assert sum(one.flops for one in products) == 2 * forward + 2 * ROWS * HIDDEN * CLASSES == counts.flops
    assert sum(one.backward for one in products) == 3 and len(products) == 5
    ways = by_group(counts, ELEMENTWISE)
    assert [one.name for one in ways if not one.backward] == ["aten.relu"]
    assert ways[0].bytes == 2 * 4 * ROWS * HIDDEN  # reads and writes
    assert {"aten._log_softmax", "aten.nll_loss_forward", "aten.nll_loss_backward"} <= {o.name for o in by_group(counts, LOSS)}


def test_the_update_and_the_batch_are_counted() -> None:
    weight_bytes = 4 * (WIDTH * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
    found = work_of(job_of(), Settings())
    fused = [one for one in found.around if one.group == UPDATE]
    assert sum(one.bytes for one in fused) == pytest.approx(7 * weight_bytes, rel=0.01)  # w, g, m, v read; w, m, v written
    assert found.batch_bytes == ROWS * (4 * WIDTH + 8)
    apart = [one for one in work_of(job_of(), Settings(fused_optimizer=False)).around if one.group == UPDATE]
    assert len(apart) > len(fused) and sum(one.bytes for one in apart) > 2 * sum(one.bytes for one in fused)
    assert sum(one.bytes for one in work_of(job_of(clip=1.0), Settings()).around) > sum(one.bytes for one in found.around)


def test_every_group_is_found() -> None:
    groups = {one.name: one for one in predict(rich_job(), Settings(), CPU).groups}
    assert set(GROUPS) - {"other"} <= set(groups)
    assert groups[CONVOLUTIONS].flops and groups[PRODUCTS].flops and groups[ATTENTION].flops
    assert not groups[NORMALISATION].flops and groups[NORMALISATION].bytes


def test_mixed_precision_halves_the_bytes_of_products_and_adds_casts() -> None:
    job = rich_job()
    plain, half = (work_of(job, Settings(precision=name)).counts for name in ("fp32", "bf16"))
    assert {one.dtype for one in by_group(half, PRODUCTS)} == {torch.bfloat16}
    assert sum(o.bytes for o in by_group(half, PRODUCTS)) == pytest.approx(sum(o.bytes for o in by_group(plain, PRODUCTS)) / 2)
    assert len(by_group(half, MOVEMENT)) > len(by_group(plain, MOVEMENT))
    assert plain.flops == half.flops


def test_recomputing_and_micro_batches_are_counted() -> None:
    job = rich_job()
    whole, again = (work_of(job, Settings(activation_checkpointing=on)) for on in (False, True))
    assert again.counts.flops > 1.1 * whole.counts.flops
    parts = work_of(job, Settings(micro_batch=8))
    assert (parts.rows, parts.parts) == (8, ROWS / 8)
    assert parts.counts.flops * parts.parts == pytest.approx(whole.counts.flops)


def test_tracing_does_not_change_the_model_and_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job = rich_job()
    job.model.eval()
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    calls: list[str] = []
    trace = work.trace
    monkeypatch.setattr(work, "trace", lambda *given: calls.append("traced") or trace(*given))  # type: ignore[func-returns-value]
    for settings in (
        Settings(),
        Settings(compile="on"),
        Settings(fused_optimizer=False),
        Settings(activation_checkpointing=True),
    ):
        predict(job, settings, CPU)
    assert len(calls) == 2
    after = job.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before) and not job.model.training
    assert all(p.grad is None and type(p) is nn.Parameter for p in job.model.parameters())
    assert job.model(torch.zeros(1, 1, 6, 6)).shape == (1, CLASSES)


def test_fusing_saves_bytes_that_are_read_again_at_once() -> None:
    x = torch.ones(100)
    chain = count_step(lambda: (x + 1).mul(2).relu()).operations
    (one,) = fuse(chain)
    assert sum(part.bytes for part in chain) == 3 * 2 * 400 and one.bytes == 2 * 400
    cut = count_step(lambda: torch.relu(torch.relu(torch.ones(8, 8)) @ torch.ones(8, 8)) + 1).operations
    assert len(fuse(cut)) == 3  # a product is never fused into a chain


def test_fusing_still_writes_values_needed_later() -> None:
    x, w = torch.ones(8, 8), torch.ones(8, 8)

    def kept() -> None:
        inner = x + 1
        (inner.relu() @ w).add(inner)

    assert fuse(count_step(kept).operations)[0].bytes == 3 * 4 * 64  # x; inner, which is read after the product; its relu


# the prediction


def test_shares_add_up_and_the_largest_bounds() -> None:
    for job in (job_of(), rich_job()):
        for ceilings, device in ((CPU, "cpu"), (GPU, "cuda:0")):
            found = predict(job, Settings(device=device), ceilings)
            assert set(found.shares) == set(BOUNDS) and sum(found.shares.values()) == pytest.approx(1)
            assert found.bound == max(found.shares, key=lambda bound: found.shares[bound])
            assert found.step_s is not None and found.step_s > 0
            assert all(group.bound in (COMPUTE, MEMORY, LAUNCH) and group.seconds > 0 for group in found.groups)


def test_on_a_cpu_the_groups_add_up_to_the_step() -> None:
    found = predict(rich_job(), Settings(), CPU)
    assert sum(group.seconds for group in found.groups) == pytest.approx(found.step_s)


def test_a_graph_removes_the_launch_cost() -> None:
    job = job_of()
    called, replayed = (predict(job, Settings(device="cuda:0", graph=on), GPU) for on in (False, True))
    assert called.bound == LAUNCH and called.shares[LAUNCH] == 1
    assert replayed.step_s is not None and called.step_s is not None and replayed.step_s < called.step_s / 2


def test_a_graph_closes_gaps_between_kernels_if_not_launch_bound() -> None:
    ceilings = replace(GPU, launch_s=measured(5e-6), kernel_s=measured(1e-6))
    job = job_of({"mlp": {"hidden": [8192]}}, (8192,), batch=8192)
    called, replayed = (predict(job, Settings(device="cuda:0", graph=on), ceilings) for on in (False, True))
    assert called.bound == replayed.bound == COMPUTE and called.step_s is not None and replayed.step_s is not None
    kernels = sum(group.operators for group in called.groups)
    assert 2e-6 * kernels < called.step_s - replayed.step_s <= 2.6e-6 * kernels  # a graph also looks up its learning rate
    s = Situation(job, torch.device("cuda:0"), {}, ceilings, called)
    (candidate,) = graph.candidates(s, Settings(device="cuda:0"))
    assert candidate.unless_slower and not candidate.compiles_anew
    (candidate,) = graph.candidates(s, Settings(device="cuda:0", micro_batch=64))  # memory is short
    assert not candidate.unless_slower


@pytest.mark.parametrize(("launch_s", "chosen"), [(1e-5, True), (5e-7, True), (1e-7, False)])
def test_a_graph_is_chosen_if_launching_takes_nearly_as_long_as_the_step(launch_s: float, chosen: bool) -> None:
    """In the chosen format, not in float32: faster kernels have the same launch cost."""
    job = replace(wide_job(), budget=Budget.parse("1000 steps"))
    ceilings = replace(GPU, launch_s=measured(launch_s), kernel_s=measured(1e-8))
    s = Situation(job, torch.device("cuda:0"), {}, ceilings, predict(job, Settings(device="cuda:0"), ceilings))
    values = {"device": "cuda:0", "tier": "resident", "precision": "bf16"}
    (choice,) = graph.default(s, values)
    step = predict(job, Settings(device="cuda:0", precision="bf16"), ceilings)
    assert step.step_s is not None and (step.calls_s > step.step_s / 2) is chosen
    assert isinstance(choice, Choice) and choice.value is chosen, choice.why


def wide_job() -> Job:
    return job_of({"mlp": {"hidden": [2048, 2048]}}, (1024,), batch=512)


def test_faster_formats_help_if_products_are_the_bottleneck() -> None:
    job = wide_job()
    for ceilings, device in ((CPU, "cpu"), (GPU, "cuda:0")):
        plain, half = (
            predict(job, Settings(device=device, precision=p, graph=device != "cpu"), ceilings) for p in ("fp32", "bf16")
        )
        assert plain.bound == COMPUTE
        assert half.step_s is not None and plain.step_s is not None and half.step_s < plain.step_s
    slow = replace(CPU, matmul_flops={"fp32": measured(1e11), "bf16": measured(2e9)})
    assert (predict(job, Settings(precision="bf16"), slow).step_s or 0) > 10 * (predict(job, Settings(), slow).step_s or 0)


def test_compiling_moves_fewer_bytes_in_fewer_operators() -> None:
    job = rich_job()
    eager, compiled = (predict(job, Settings(device="cuda:0", compile=how), GPU) for how in ("off", "on"))
    assert sum(g.bytes for g in compiled.groups) < 0.8 * sum(g.bytes for g in eager.groups)
    assert sum(g.operators for g in compiled.groups) < 0.8 * sum(g.operators for g in eager.groups)
    assert sum(g.flops for g in compiled.groups) == sum(g.flops for g in eager.groups)


def test_layout_update_and_micro_batches_cost_time() -> None:
    job = rich_job()

    def step_s(**settings: Any) -> float:
        return predict(job, Settings(**settings), CPU).step_s or 0.0

    plain = step_s()
    assert step_s(channels_last=True) < plain
    assert step_s(fused_optimizer=False) > plain
    assert step_s(micro_batch=4) > plain
    assert step_s(activation_checkpointing=True) > plain


def test_a_slow_link_or_source_is_the_bottleneck() -> None:
    job = job_of(batch=4096)
    settings = Settings(device="cuda:0", graph=True, tier="pinned")
    slow_link = replace(GPU, host_to_device_pinned_bytes_per_s=measured(1e6))
    found = predict(job, settings, slow_link)
    assert found.bound == TRANSFER and found.step_s == pytest.approx(4096 * (4 * WIDTH + 8) / 1e6)
    assert predict(job, replace(settings, tier="resident"), slow_link).bound != TRANSFER
    read = predict(job, settings, GPU, input_rows_per_s=1000)
    assert read.bound == INPUT and read.step_s == pytest.approx(4.096)


def test_measured_operator_and_kernel_overheads_are_used() -> None:
    job = rich_job()
    slow_calls = predict(job, Settings(), replace(CPU, operator_s=measured(1e-3)))
    assert slow_calls.bound == LAUNCH and (slow_calls.step_s or 0) > 1e-3 * work_of(job, Settings()).counts.operators
    slow_start = predict(job, Settings(device="cuda:0", graph=True), replace(GPU, kernel_s=measured(1e-3)))
    assert slow_start.bound == LAUNCH


def timed(ceilings: Ceilings, job: Job, settings: Settings, seconds: Callable[[Operation], float | None]) -> Ceilings:
    operations = work_of(job, settings).operations
    return replace(ceilings, operators={one.key: seconds(one) for one in operations if one.key})


@pytest.mark.parametrize("group", [PRODUCTS, CONVOLUTIONS, ATTENTION, NORMALISATION, ELEMENTWISE, UPDATE])
def test_a_slow_operator_dominates_the_prediction(group: str) -> None:
    job = rich_job()
    slow = timed(CPU, job, Settings(), lambda one: 1.0 if one.group == group else 1e-5)
    found = max(predict(job, Settings(), slow).groups, key=lambda one: one.seconds)
    assert found.name == group and found.seconds > 1


def test_a_step_takes_the_measured_time_of_its_operators() -> None:
    job = rich_job()
    for settings, ceilings in ((Settings(), CPU), (Settings(device="cuda:0", graph=True), GPU)):
        timed_s = sum(1e-3 for one in work_of(job, settings).operations if one.key)
        found = predict(job, settings, timed(ceilings, job, settings, lambda one: 1e-3))
        assert found.step_s == pytest.approx(timed_s, rel=0.05)


def test_untimed_operators_are_predicted_from_the_ceilings() -> None:
    job = rich_job()
    assert predict(job, Settings(), timed(CPU, job, Settings(), lambda one: None)) == predict(job, Settings(), CPU)


def test_a_slow_format_is_predicted_to_be_slower() -> None:
    job = rich_job()
    plain, half = Settings(), Settings(precision="bf16")
    slow = timed(CPU, job, half, lambda one: 1.0 if one.dtype == torch.bfloat16 else None)
    assert (predict(job, half, slow).step_s or 0) > 10 * (predict(job, plain, slow).step_s or 0)


def test_tf32_products_do_not_use_float32_times() -> None:
    job = wide_job()
    plain, tf32 = (Settings(device="cuda:0", graph=True, precision=name) for name in ("fp32", "tf32"))
    slow = timed(GPU, job, plain, lambda one: 1.0)
    one_by_one = {group.name: group.seconds for group in predict(job, tf32, slow).groups}
    assert one_by_one[PRODUCTS] < 1e-2 and one_by_one[ELEMENTWISE] > 1


def test_fusing_saves_bytes_but_not_slow_arithmetic() -> None:
    job, compiled = rich_job(), Settings(device="cuda:0", compile="on", graph=True)
    slow = timed(GPU, job, compiled, lambda one: 1.0 if "gelu" in one.name else None)
    assert (predict(job, compiled, slow).step_s or 0) > 1


def test_a_model_that_depends_on_values_has_no_prediction_but_a_reason() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(x if x.sum() > 0 else -x)
            return out

    found = predict(job_of(lambda: Looks()), Settings(), CPU)
    assert found.step_s is None and "can't be traced" in found.reason
    unprobed = predict(job_of(), Settings(), None)
    assert unprobed.step_s is None and unprobed.flops_per_sample and "flatout probe" in unprobed.reason


# stored


def test_a_stored_prediction_can_be_read() -> None:
    found = predict(rich_job(), Settings(), CPU)
    assert Prediction(**json.loads(json.dumps(asdict(found)))) == found


def test_a_prediction_of_an_older_run_can_be_read() -> None:
    old = {"step_s": 0.5, "flops_per_sample": 1e6, "ceiling_flops": 1e11, "bound": "compute", "share": 0.1, "reason": ""}
    found = Prediction(**old)  # type: ignore[arg-type]
    assert found.rate(10) == 20 and found.groups == () and found.shares == {}


def test_intensity_of_a_group() -> None:
    assert OperatorGroup(PRODUCTS, 100.0, 50.0, 1, 0.1, COMPUTE).intensity == 2
    assert OperatorGroup(MOVEMENT, 0.0, 0.0, 1, 0.1, MEMORY).intensity == 0
