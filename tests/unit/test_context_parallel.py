"""Sequences of which each process has a part: the same weights, losses and metrics as by one process, on real processes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from context_runs import Case, run, run_all
from gloo import on_ranks
from safetensors.torch import load_file
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.base.events import read_events
from flatout.engine.parallel.context import SplitAttention, attend_to_past, check_length, check_sequences, own_stretches
from flatout.engine.parallel.mesh import parse_mesh
from flatout.engine.settings import Settings
from flatout.engine.surroundings import seed_of
from flatout.models.gpt import gpt
from flatout.objectives.classify import Classify
from flatout.objectives.inputs import Inputs
from flatout.objectives.next_token import NextToken
from flatout.plan.knobs.all import conflicts
from flatout.world.world import World

LEAN = {"activation_checkpointing": True, "micro_batch": 2, "loss_head": "chunked", "vocabulary_padding": 8}
SPLIT = {
    2: [("masked", "context=2", {}), ("counted", "context=2", {}), ("rotated", "context=2", {}), ("masked", "context=2", LEAN)],
    4: [("masked", "context=4", {}), ("masked", "data=2,context=2", {}), ("counted", "shard=2,context=2", {})],
}


@functools.cache
def alone(name: str) -> Path:
    folder = _place()
    run(Case(name, "", str(folder)))
    return folder


def _place() -> Path:
    """For as long as the tests run."""
    kept = tempfile.TemporaryDirectory()
    _places.append(kept)
    return Path(kept.name)


_places: list[tempfile.TemporaryDirectory[str]] = []


def same(one: Path, other: Path) -> None:
    """Weights, losses of every step, metrics of every evaluation."""
    right, found = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert right.keys() == found.keys()
    assert max(float((right[name] - found[name]).abs().max() / right[name].abs().max()) for name in right) < 1e-9
    here, there = (dict(said(folder, "step", "loss")) for folder in (one, other))
    assert there == pytest.approx(here, rel=1e-12) and list(here) == list(range(1, 13))
    before, now = (dict(said(folder, "evaluation", "metrics")) for folder in (one, other))
    assert list(before) == list(now) == [6, 12]
    assert all(now[step] == pytest.approx(before[step], rel=1e-12) for step in before)


def said(folder: Path, kind: str, what: str) -> Iterator[tuple[int, Any]]:
    """In which step, of events of this kind."""
    return ((event["step"], event[what]) for event in read_events(folder / "events.jsonl") if event["kind"] == kind)


@pytest.mark.parametrize("size", SPLIT)
def test_parts_of_sequences_learn_the_same(tmp_path: Path, size: int) -> None:
    """In float64 with AdamW and clipping, evaluated on the way; once with all that saves memory."""
    cases = [
        Case(name, mesh, str(tmp_path / str(number)), settings=settings)
        for number, (name, mesh, settings) in enumerate(SPLIT[size])
    ]
    told = on_ranks(size, run_all, cases, folder=tmp_path)
    assert all(one == told[0] for one in told), "every process knows the same metrics"
    for case in cases:
        same(alone(case.name), Path(case.folder))


def test_another_number_of_processes_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Two stop and one goes on; one stops and two go on."""
    fewer, more = str(tmp_path / "fewer"), str(tmp_path / "more")
    run(Case("masked", "", more, stop_at=5))
    on_ranks(2, run_all, [Case("masked", "context=2", fewer, stop_at=5), Case("masked", "context=2", more)], folder=tmp_path)
    run(Case("masked", "", fewer))
    for folder in map(Path, (fewer, more)):
        same(alone("masked"), folder)
        kinds = [event["kind"] for event in read_events(folder / "events.jsonl")]
        assert kinds.count("stopped") == kinds.count("resumed") == 1


# ---- what can't be split ----


def test_a_run_that_can_not_be_split_stops_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"context=2 splits sequences of tokens.* classify"):
        on_ranks(2, run, Case("table", "context=2", str(tmp_path / "run")), folder=tmp_path)


def world_of(size: int, rank: int = 0, data: int = 1) -> World:
    world = World()
    world.context_size, world.context_rank, world.data_size = size, rank, data
    return world


def refused(model: nn.Module, objective: Any = None, **shapes: tuple[int, ...]) -> str:
    with pytest.raises(UsageError) as caught:
        check_sequences(model, objective or NextToken(), {"x": (16,), "y": (16,), **shapes}, world_of(4))
    return str(caught.value)


class Own(nn.Module):
    def __init__(self, *hooks: str, **parts: nn.Module) -> None:
        super().__init__()
        for hook in hooks:
            setattr(self, hook, F.scaled_dot_product_attention)
        for name, part in parts.items():
            self.add_module(name, part)


def test_a_model_that_offers_no_hook() -> None:
    assert "no module of Own has a hook `attend`" in refused(Own())
    without = refused(Own("attend"))
    assert "no module of Own has a hook `locate`" in without and "self.locate = lambda length, device" in without
    mixing = refused(Own("attend", "locate", layer=nn.GRU(4, 4)))
    assert "layer is a GRU, which needs positions that are on other processes" in mixing


def test_columns_and_objectives_that_have_no_positions() -> None:
    model = gpt(5, 16, layers=1, heads=1, width=8)
    assert "it is classify: set objective: next_token, or use data=4" in refused(model, Classify())
    assert "x is [rows, 16, 3]: use data=4" in refused(model, x=(16, 3))


@pytest.mark.parametrize(
    ("length", "size", "words"),
    [
        (12, 4, "context=4 cuts a sequence into 8 equal pieces.* 12 tokens .*: set a window of 8 or 16, or context=3"),
        (6, 4, "set a window of 8, or context=3"),
        (5, 2, "set a window of 4 or 8$"),
    ],
)  # fmt: skip
def test_a_length_that_does_not_divide(length: int, size: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_length(length, world_of(size))


def test_meshes_and_settings_that_do_not_go_together() -> None:
    assert parse_mesh("context=2,data=2", 4)["context"] == 2
    for others in (["pipeline"], ["tensor"], ["data", "shard"]):
        said = f"context can be combined with data or with shard, not with {' and '.join(others)} yet"
        with pytest.raises(UsageError, match=said):
            parse_mesh(",".join(f"{axis}=2" for axis in (*others, "context")), 2 ** (len(others) + 1))
    assert any("attention=flex" in one for one in conflicts(Settings(mesh="context=2", attention="flex", compile="on")))


# ---- who has what ----


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_position_is_somebodys_and_the_work_is_even(size: int) -> None:
    spans = [world_of(size, rank).stretches(24) for rank in range(size)]
    assert sorted(place for own in spans for first, end in own for place in range(first, end)) == list(range(24))
    pairs = [sum(place + 1 for first, end in own for place in range(first, end)) for own in spans]
    assert len(set(pairs)) == 1, "queries times the keys they see"


def test_a_batch_is_cut_to_what_the_objective_reads() -> None:
    tokens = torch.arange(16).reshape(2, 8)
    batch = {"ids": tokens, "y": tokens + 1, "length": torch.tensor([8, 8])}
    own = own_stretches(NextToken(Inputs(("ids",))), batch, world_of(2, rank=1))
    assert own.keys() == {"ids", "y"}
    assert own["ids"].tolist() == [[2, 3, 4, 5], [10, 11, 12, 13]] and torch.equal(own["y"], own["ids"] + 1)


def test_processes_of_one_sequence_draw_numbers_of_their_own() -> None:
    """Such as those of dropout."""
    worlds = [world_of(2, rank, data=2) for rank in (0, 1, 0, 1)]
    for number, world in enumerate(worlds):
        world.data_rank = number // 2
    assert len({seed_of(0, world) for world in worlds}) == 4


def test_queries_see_the_keys_up_to_their_own() -> None:
    query, key, value = (torch.randn(2, 3, 8, 4, dtype=torch.float64) for _ in range(3))
    whole: Tensor = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    part = attend_to_past(query[..., 4:6, :], key[..., :6, :], value[..., :6, :])
    assert torch.allclose(part, whole[..., 4:6, :], rtol=1e-12)


def test_a_mask_of_the_models_own_is_refused() -> None:
    """It would be of this process's positions alone, as that of packed texts is."""
    attend = SplitAttention(world_of(2), group=None)
    query = torch.zeros(1, 1, 4, 2)
    with pytest.raises(UsageError, match="context=2: the model uses its own attention mask"):
        attend(query, query, query, attn_mask=torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(UsageError, match="4 queries and 6 keys"):
        attend(query, torch.zeros(1, 1, 6, 2), query, is_causal=True)
