"""Layouts of many devices: memory and work checked by hand, reasons for impossible layouts, and published runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import flatout as fo
from flatout.base.errors import UsageError
from flatout.base.tree import to_data, to_text
from flatout.models.blocks import blocks_of
from flatout.models.gpt import gpt
from flatout.plan.layouts.collectives import Network
from flatout.plan.layouts.count import count_model
from flatout.plan.layouts.estimate import Cluster, TrainingLoad, estimate
from flatout.plan.layouts.explain import explain_layouts
from flatout.plan.layouts.jobs import explain_job_layouts, shape_of_job, splits_of
from flatout.plan.layouts.kinds import LINKS, device_kind
from flatout.plan.layouts.layout import ParallelLayout, cut, problem
from flatout.plan.layouts.memory import in_flight, memory_of
from flatout.plan.layouts.search import find_layouts, meshes
from flatout.plan.layouts.shape import Shape
from flatout.plan.layouts.timing import times_of
from flatout.recipe.build import build_job

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from _described_transformers import DESCRIBED, Transformer, build, described, shape_of_transformer
from _published_layouts import FITTED, GIB, MEMORY_BAR, RATE_BAR, ROWS, Row, foretell

WIDTH, HIDDEN, BLOCKS, CLASSES = 8, 32, 6, 10


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.relu(self.up(x)))
        return out


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        out: Tensor = self.head(x)
        return out


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), 2.0


def counted(**given: Any) -> Shape:
    with torch.device("meta"):
        model = Stack()
    return count_model(model, loss, {"x": ((WIDTH,), torch.float32), "y": ((), torch.int64)}, **given)


@pytest.fixture(scope="module")
def stack() -> Shape:
    return counted(splits={"hidden units": HIDDEN})


@pytest.fixture(scope="module")
def llama() -> Shape:
    return shape_of_transformer(described("llama-3.1-8b"), 8192)


# counting


def test_a_model_on_the_meta_device_is_counted_block_by_block(stack: Shape) -> None:
    assert len(stack.blocks) == BLOCKS
    middle = stack.blocks[2]
    assert middle.parameters == 2 * WIDTH * HIDDEN
    assert middle.forward.product_flops == 2 * 2 * WIDTH * HIDDEN
    assert middle.backward.product_flops == 2 * middle.forward.product_flops
    assert middle.output_bytes == 2 * WIDTH  # bf16
    assert middle.kept.saved_bytes == 2 * (WIDTH + HIDDEN)  # its input, and what came out of relu
    assert stack.last.parameters == WIDTH * CLASSES
    assert stack.parameters == sum(p.numel() for p in Stack().parameters())


def test_equal_blocks_are_one_object(stack: Shape) -> None:
    assert len({id(block) for block in stack.blocks}) <= 2  # the first passes on no gradient


@pytest.mark.parametrize(("name", "parameters"), [("llama-3.1-8b", 8_030_261_248), ("llama-3.1-70b", 70_553_706_496)])
def test_described_models_have_the_published_number_of_weights(name: str, parameters: int) -> None:
    assert shape_of_transformer(described(name), 128).parameters == parameters


def test_the_work_of_a_transformer_adds_up_by_hand(llama: Shape) -> None:
    one, length = DESCRIBED["llama-3.1-8b"], 8192
    weights = one.layers * (2 * one.width**2 + 2 * one.width * 1024 + 3 * one.width * one.hidden) + one.width * one.vocabulary
    attention = one.layers * 2 * length * one.width  # half of the scores, either product, for one token
    assert llama.flops_per_sample / length == pytest.approx(6 * weights + 3.5 * attention, rel=1e-6)


def test_what_selective_recomputing_keeps_adds_up_by_hand(llama: Shape) -> None:
    """Queries, values, attention with its logarithms, the gate and the last product; the last one only until it is compiled."""
    a_token = 2 * (4096 + 1024 + 4096 + 14336 + 4096) + 4 * 32
    assert llama.blocks[0].kept.selective_bytes / 8192 == a_token
    assert llama.blocks[0].compiled.selective_bytes / 8192 == a_token - 2 * 4096


def test_a_described_transformer_costs_what_the_module_does() -> None:
    small = Transformer("small", 3, 64, 4, 2, 128, 96)
    row = ((16,), torch.int64)

    def token_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
        return F.cross_entropy(model(batch["x"]).flatten(0, 1).float(), batch["y"].flatten()), 1.0

    module = count_model(build(small, 3), token_loss, {"x": row, "y": row})
    one = shape_of_transformer(small, 16)
    assert (one.parameters, one.flops_per_sample) == (module.parameters, module.flops_per_sample)


def test_a_tied_head_is_counted_once_and_its_second_use_is_known() -> None:
    row = ((16,), torch.int64)

    def token_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
        return F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten()), 1.0

    model = gpt(vocabulary=50, window=16, layers=3, heads=2, width=8)
    shape = count_model(model, token_loss, {"x": row, "y": row}, splits=splits_of(model))
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.tied_parameters == 50 * 8
    assert shape.splits == {"attention heads": 2, "hidden units": 32}


def test_a_model_without_a_list_is_one_block() -> None:
    assert len(blocks_of(nn.Linear(3, 3))) == 1
    assert len(blocks_of(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))) == 2


# memory


def test_states_take_sixteen_bytes_a_weight_and_are_divided_by_sharding(stack: Shape) -> None:
    alone = memory_of(stack, ParallelLayout(), 8)
    assert alone.parameters + alone.gradients + alone.optimizer == 16 * stack.parameters
    sharded = memory_of(stack, ParallelLayout(shard=4), 8)
    assert sharded.parameters + sharded.gradients + sharded.optimizer == 16 * stack.parameters / 4
    assert memory_of(stack, ParallelLayout(data=4), 8).parameters == alone.parameters
    assert memory_of(stack, ParallelLayout(), 8, optimizer_bytes=4).optimizer == 4 * stack.parameters


def test_eight_billion_weights_on_eight_devices_add_up_by_hand(llama: Shape) -> None:
    memory = memory_of(llama, ParallelLayout(shard=8, micro_batch=2, recompute="selective"), 16)
    tokens, weights = 2 * 8192, 8_030_261_248
    assert memory.parameters == 4 * weights / 8
    assert memory.optimizer == 8 * weights / 8
    assert memory.activations == tokens * 32 * (2 * (4096 + 1024 + 4096 + 14336 + 4096) + 4 * 32 + 2 * 4096)
    assert memory.transient == pytest.approx(3 * 4 * tokens * 128256, rel=0.05)  # logits in fp32, thrice


def test_recomputing_keeps_the_inputs_of_blocks_alone(llama: Shape) -> None:
    kept, again = (memory_of(llama, ParallelLayout(shard=8, recompute=how), 8).activations for how in ("none", "full"))
    assert again == 8192 * 32 * 2 * 4096
    assert kept > 10 * again


def test_tensor_parallelism_divides_weights_and_activations(llama: Shape) -> None:
    whole = memory_of(llama, ParallelLayout(shard=8, recompute="full"), 64)
    split = memory_of(llama, ParallelLayout(shard=8, tensor=8, recompute="full"), 64)
    assert split.activations == whole.activations / 8
    assert split.parameters == pytest.approx(whole.parameters / 8, rel=1e-3)  # norms are not divided


def test_stages_hold_as_many_micro_batches_as_their_schedule_says() -> None:
    pipeline = ParallelLayout(pipeline=4)
    assert [in_flight(pipeline, rank, 16) for rank in range(4)] == [[4], [3], [2], [1]]
    assert in_flight(replace(pipeline, schedule="gpipe"), 0, 16) == [16]
    assert in_flight(pipeline, 0, 2) == [2]


def test_blocks_are_cut_evenly() -> None:
    assert cut(126, 8) == [15, 16, 16, 16, 16, 16, 16, 15]
    assert cut(6, 6) == [1] * 6


# time


def test_a_pipeline_idles_less_with_more_micro_batches_and_with_chunks(llama: Shape) -> None:
    cluster = Cluster.of("h100")

    def idle(**how: Any) -> float:
        layout = ParallelLayout(pipeline=4, recompute="full", **how)
        times = times_of(llama, layout, 32, cluster.kind, cluster.network)
        return times.bubble_s / times.compute_s

    few, many, chunks = idle(micro_batch=4), idle(micro_batch=1), idle(micro_batch=4, schedule="interleaved", chunks=2)
    assert many < few
    assert chunks < few
    assert few == pytest.approx(3 / 8, rel=0.01)


def test_slow_links_cost_time(llama: Shape) -> None:
    def waited(between: str) -> float:
        cluster = Cluster.of("h100", between=between)
        return times_of(llama, ParallelLayout(shard=64), 64, cluster.kind, cluster.network).communication_share

    assert waited("infiniband-ndr") < 0.1 < 0.5 < waited("ethernet-10g")


def test_more_work_takes_longer_and_none_is_free(stack: Shape, llama: Shape) -> None:
    cluster = Cluster.of("h100")
    steps = [times_of(llama, ParallelLayout(micro_batch=1), rows, cluster.kind, cluster.network).step_s for rows in (1, 2, 4)]
    assert steps == sorted(steps)
    small = times_of(stack, ParallelLayout(), 1, cluster.kind, cluster.network)
    assert small.compute_s > 1e-4  # calling its operators takes longer than their arithmetic


def test_groups_lie_on_nodes_as_torch_lays_them() -> None:
    """Compared with torch's own mesh of 64 imaginary ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    layout = ParallelLayout(pipeline=2, data=2, shard=4, tensor=4)
    network = Network(8, LINKS["nvlink4"], LINKS["infiniband-ndr"])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    try:
        names = ("pipeline", "data", "shard", "tensor")
        mesh = init_device_mesh("cpu", (2, 2, 4, 4), mesh_dim_names=names)
        for name in names:
            ranks = dist.get_process_group_ranks(mesh.get_group(name))
            group = network.group(layout, name)
            assert group.size == len(ranks)
            assert group.inside == sum(rank < 8 for rank in ranks), name
    finally:
        dist.destroy_process_group()


# impossible layouts


def test_impossible_layouts_are_rejected_with_a_reason(stack: Shape, llama: Shape) -> None:
    assert problem(llama, ParallelLayout(tensor=16), 64, 16) == "8 key and value heads are not divisible by tensor=16"
    assert "7 pipeline stages, but the model has only 6 blocks" in str(problem(stack, ParallelLayout(pipeline=7), 64, 8))
    assert "12 pipeline stages" in str(problem(stack, ParallelLayout(pipeline=6, chunks=2, schedule="interleaved"), 64, 8))
    assert "too few rows for 128 devices" in str(problem(stack, ParallelLayout(data=128), 64, 8))
    assert "does not fit in a node of 4 devices" in str(problem(llama, ParallelLayout(tensor=8), 64, 4))
    assert "no tensor plan" in str(problem(counted(), ParallelLayout(tensor=2), 64, 8))
    assert "multiple of 4 micro-batches, got 6" in str(
        problem(llama, ParallelLayout(pipeline=4, chunks=2, schedule="interleaved"), 6, 8)
    )
    assert problem(llama, ParallelLayout(data=2, shard=2, tensor=2, pipeline=2), 64, 8) is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: device_kind("h1000"), "unknown device kind 'h1000': did you mean 'h100'?"),
        (lambda: device_kind("abacus"), "known: a100"),
        (lambda: Cluster.of("h100", between="infinband-ndr"), "did you mean 'infiniband-ndr'?"),
        (lambda: Cluster.of("h100", per_node=0), "at least 1 device, got 0"),
        (lambda: described("llama-3.1-7b"), "did you mean 'llama-3.1-"),
        (lambda: find_layouts(counted(), TrainingLoad(8), Cluster.of("h100"), 0), "at least 1 device, got 0"),
    ],
)
def test_mistyped_names_get_suggestions(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        call()


# the search


def test_all_meshes_multiply_to_the_world() -> None:
    every = list(meshes(12, ParallelLayout()))
    assert all(mesh.world == 12 for mesh in every)
    assert len({mesh.mesh for mesh in every}) == len(every) == 4 * 10


def test_layouts_are_ordered_by_rate_and_fit(llama: Shape) -> None:
    cluster = Cluster.of("h100")
    found = find_layouts(llama, TrainingLoad(64), cluster, 16)
    rates = [one.rate for one in found.fitting]
    assert rates == sorted(rates, reverse=True)
    assert all(one.memory.reserved <= cluster.usable_bytes for one in found.fitting)
    assert len(found.fitting) + len(found.rejected) == len(list(meshes(16, ParallelLayout())))
    whole = next(one for one in found.rejected if one.layout.mesh == "data=16")
    assert whole.why.startswith("needs at least ") and whole.why.endswith("75.2 GB are usable")


def test_a_node_with_slow_links_prefers_fewer_exchanges(llama: Shape) -> None:
    slow = find_layouts(llama, TrainingLoad(64), Cluster.of("h200", inside="ethernet-10g", between="ethernet-10g"), 8)
    assert slow.fitting[0].layout.tensor == 1


# the screen


def test_the_page_has_layouts_and_reasons(llama: Shape) -> None:
    doc = explain_layouts(llama, batch=128, devices=64, device_kind="h100", compiled=True)
    text, data = to_text(doc), to_data(doc)
    assert text.startswith("Layouts of llama-3.1-8b on 64 x h100 · ")
    assert (
        "tokens/s predicted" in text
        and "communication" in text
        and "not possible:" in text
        and "calculated, not measured" in text
    )
    assert max(len(line) for line in text.splitlines()) < 160
    first = data["layouts"][0]
    assert {"mesh", "memory_bytes", "step_s", "communication_share", "rate", "parts"} <= first.keys()
    assert sum(first["parts"].values()) < first["memory_bytes"] < 80e9
    assert {"mesh": "tensor=64", "why": "32 attention heads are not divisible by tensor=64"} in data["rejected"]
    assert len(data["layouts"]) + len(data["rejected"]) == 84


def test_where_nothing_fits_the_page_says_so(llama: Shape) -> None:
    text = to_text(explain_layouts(llama, batch=2, devices=1, device_kind="a100-40gb"))
    assert "none fits" in text and "needs at least" in text


def test_a_job_is_explained_with_its_own_model_and_loss() -> None:
    data = fo.data.arrays(torch.randn(64, 12), torch.arange(64) % 3, classes=3, holdout=0.0)
    job = build_job(fo.Recipe(data=data, model={"mlp": {"hidden": [16, 16]}}, batch=8, lr=0.1, budget="1 epoch"))
    shape = shape_of_job(job, name="table/mlp")
    assert shape.parameters == sum(p.numel() for p in job.model.parameters())
    assert all(parameter.device.type == "cpu" and parameter.dtype == torch.float32 for parameter in job.model.parameters())
    page = to_data(explain_job_layouts(job, devices=4, device_kind="h100", name="table/mlp"))
    assert page["model"] == "table/mlp" and page["batch"] == 8 and page["unit"] == "samples"
    assert any("no tensor plan" in one["why"] for one in page["rejected"])


# published runs


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_published_runs_are_predicted_within_the_limits(row: Row) -> None:
    found = foretell(row)
    assert found.per_device == pytest.approx(row.rate, rel=RATE_BAR)
    if row.memory_gib is not None:
        assert found.memory.reserved / GIB == pytest.approx(row.memory_gib, rel=MEMORY_BAR)


def test_constants_are_fitted_on_the_named_rows_alone() -> None:
    assert [row.rate for row in FITTED] == [5762, 6667, 8532, 10753]
    assert [row.memory_gib for row in FITTED if "memory" in row.fits] == [82.4, 77.0, 76.8]
    for row in FITTED:
        assert foretell(row).per_device == pytest.approx(row.rate, rel=0.005)


def test_rates_follow_from_the_estimated_step_time(llama: Shape) -> None:
    cluster, layout = Cluster.of("h100"), ParallelLayout(shard=8, micro_batch=2, recompute="full")
    found = estimate(llama, layout, TrainingLoad(16), cluster)
    assert found.rate == 16 * 8192 / found.times.step_s
    assert found.per_device == found.rate / 8
