"""Every operator of a step is timed on the device, in every format, and the device is as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout as fo
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.capture import captured
from flatout.machine.ceilings import Ceilings
from flatout.machine.operators import with_operators
from flatout.measure.counts import count_step
from flatout.plan.make import checked_plan
from flatout.plan.predict import predict
from flatout.plan.work import work_of
from flatout.recipe.build import build_job

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Everything(nn.Module):
    """Convolutions, pooling, norms, attention with dropout and a mask, words, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.words = nn.Embedding(100, 64)
        self.qkv, self.after, self.head = nn.Linear(64, 192), nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        images = F.max_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(2).transpose(1, 2)
        places = images + self.words(torch.arange(images.shape[1], device=x.device) % 100)
        heads = self.qkv(places).unflatten(2, (3, 1, 64)).permute(2, 0, 3, 1, 4)
        places = places + F.scaled_dot_product_attention(heads[0], heads[1], heads[2], dropout_p=0.1, is_causal=True).squeeze(1)
        out: Tensor = self.head(F.dropout(F.gelu(self.after(places)), 0.1).mean(1))
        return out


def everything(**given: Any) -> Job:
    x, y = torch.randn(256, 3, 16, 16), torch.arange(256) % 10
    asked: dict[str, Any] = {"batch": 128, "lr": 1e-3, "budget": "9 steps", "evaluate": None, "clip": 1.0} | given
    return build_job(fo.Recipe(data=fo.data.arrays(x, y, classes=10, holdout=0.0), model=lambda: Everything(), **asked))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_operator_is_timed(ceilings: Ceilings, device: torch.device, precision: str, channels_last: bool) -> None:
    job, state = everything(), torch.cuda.get_rng_state(device)
    settings = Settings(device=str(device), precision=precision, channels_last=channels_last, graph=True)
    operations = work_of(job, settings).operations
    timed = with_operators(ceilings, device, operations, 60.0)
    called = [one for one in operations if one.key]
    missing = {one.name for one in called if timed.operators[one.key] is None}
    assert called and not missing
    assert all(seconds is not None and 0 <= seconds < 0.1 for seconds in timed.operators.values())
    assert torch.equal(state, torch.cuda.get_rng_state(device))
    a = torch.randn(64, 64, device=device)
    torch.testing.assert_close((a @ a).cpu(), a.cpu() @ a.cpu(), rtol=1e-3, atol=1e-3)  # the device still answers, rightly
    found = predict(job, settings, timed)
    assert found.step_s is not None and 1e-5 < found.step_s < 1e-1


@pytest.mark.parametrize("kernel", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"])
def test_attention_of_every_kernel_is_timed_both_ways(ceilings: Ceilings, device: torch.device, kernel: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    job, settings = everything(), Settings(device=str(device), precision="bf16")
    with sdpa_kernel(getattr(SDPBackend, kernel)):
        operations = work_of(job, settings).operations
    timed = with_operators(ceilings, device, operations, 60.0)
    attention = [one for one in operations if one.key and "scaled_dot_product" in one.name]
    assert all(timed.operators[one.key] is not None for one in attention) and len(attention) == (0 if kernel == "MATH" else 2)


def test_a_plan_times_the_operators_of_its_model_once(tmp_path: Path) -> None:
    job = everything()
    recipe = fo.Recipe(data=job.data, model=lambda: Everything(), batch=128, lr=1e-3, budget="9 steps", evaluate=None)
    plans = [checked_plan(recipe, build_job(recipe), tmp_path, limit_s=0)[0] for _ in range(2)]
    (kept,) = tmp_path.glob("ceilings-*.json")
    operators = json.loads(kept.read_text())["ceilings"]["operators"]
    assert len(operators) > 30 and None not in operators.values()
    assert plans[0].prediction == plans[1].prediction


def test_what_waits_for_the_device_is_left_alone_and_leaves_it_whole(ceilings: Ceilings, device: torch.device) -> None:
    """No graph can hold it: a capture that failed would leave random numbers and streams in pieces."""
    mean, spread = torch.zeros(64, device=device), torch.ones(64, device=device)
    waits = count_step(lambda: torch.normal(mean, spread).cpu()).operations
    own = count_step(lambda: torch.normal(mean, spread)).operations
    stream = torch.cuda.current_stream(device)
    timed = with_operators(ceilings, device, [*waits, *own], 60.0)
    assert torch.cuda.current_stream(device) == stream and torch.cuda.get_sync_debug_mode() == 0
    for one in (*waits, *own):
        assert one.key in timed.operators
    drop = nn.Dropout(0.5).to(device)
    assert 0 < float(drop(torch.ones(1000, device=device)).count_nonzero()) < 1000
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drop(spread)
    graph.replay()
    torch.cuda.synchronize()


def test_a_capture_that_fails_leaves_the_process_as_it_was(device: torch.device) -> None:
    value, stream = torch.ones(4, device=device), torch.cuda.current_stream(device)
    with pytest.raises(RuntimeError), captured(device):
        value.sum().item()
    assert torch.cuda.current_stream(device) == stream
    assert float(F.dropout(torch.ones(1000, device=device), 0.5).count_nonzero()) < 1000
    torch.cuda.empty_cache()
