"""Models of 7 and 70 billion weights are explained in under 10 s and 2 GB, built in or of one's own, for 1 and 64 devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from evidence import Bar, Report, options, rounds

SECONDS, PEAK_BYTES = 10.0, 2e9
SIZES = {"7b": (32, 4096, 32), "70b": (80, 8192, 64)}  # layers, width, heads
DEVICES = {"1 device": [], "64 devices": ["--devices", "64", "--device-kind", "h100"]}

GPT = """\
data: {{text: text.txt, window: 1024}}
model: {{gpt: {{layers: {layers}, width: {width}, heads: {heads}}}}}
objective: next_token
batch: 64
lr: 3e-4
budget: 1000 steps
settings: {{device: cpu}}
"""
# grouped keys, a gated MLP, rotary positions that are computed in the constructor, an index in each block
OWN = """\
import torch
import torch.nn.functional as F
from torch import nn
import flatout as fo


class Block(nn.Module):
    def __init__(self, index, width, heads, drop):
        super().__init__()
        self.index, self.heads, self.drop, hidden = index, heads, drop, width * 7 // 2
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.keys = nn.Linear(width, width, bias=False), nn.Linear(width, width // 4, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Parameter(torch.randn(hidden, width) * 0.02), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, angles):
        normed = self.norm_1(x)
        query = self.query(normed).unflatten(-1, (self.heads, -1))
        pairs = torch.view_as_complex(query.float().unflatten(-1, (-1, 2))) * angles[: x.shape[1], None]
        query = torch.view_as_real(pairs).flatten(-2).type_as(x)
        key, value = self.keys(normed).unflatten(-1, (2, self.heads // 8, -1)).repeat_interleave(8, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (query, key, value)), is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        normed = self.norm_2(x)
        return x + self.down(F.silu(F.linear(normed, self.gate)) * self.up(normed))


class Own(nn.Module):
    def __init__(self, layers={layers}, width={width}, heads={heads}):
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 0.1, layers)]
        each = width // heads
        steps = 10000.0 ** -(torch.arange(0, each, 2) / each)
        self.angles = torch.polar(torch.ones(8192, each // 2), torch.outer(torch.arange(8192.0), steps))
        self.tokens = nn.Embedding(128256, width)
        self.blocks = nn.ModuleList(Block(index, width, heads, rates[index]) for index in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 128256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x, self.angles)
        return self.head(self.norm(x))


data = {{"text": "text.txt", "window": 1024}}
asked = {{"objective": "next_token", "batch": 64, "lr": 3e-4, "budget": "1000 steps", "settings": {{"device": "cpu"}}}}
recipe = fo.Recipe(data=data, model=Own, **asked)
"""


@dataclass(frozen=True)
class Taken:
    wall_s: float
    cpu_s: float
    peak_bytes: float


def explain(folder: Path, recipe: str, more: list[str]) -> Taken:
    """One command in a process of its own, as a person types it; nothing that an earlier one traced is there."""
    shutil.rmtree(folder / "cache/traces", ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"FLATOUT_CACHE": str(folder / "cache"), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "explain", recipe, *more], cwd=folder, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"flatout explain {recipe} {' '.join(more)} failed with {process.returncode}")
    return Taken(time.perf_counter() - began_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0)


def main() -> int:
    asked = options(__doc__, repeats=3).parse_args()
    report = Report("explain_large", str(__doc__), torch.device("cpu"))
    sizes = {"7b": SIZES["7b"]} if asked.smoke else SIZES
    found: dict[str, list[Taken]] = {}
    with tempfile.TemporaryDirectory(prefix="flatout-explain-") as name:
        folder = Path(name)
        (folder / "text.txt").write_text("to be or not to be, that is the question. " * 4000)
        for size, (layers, width, heads) in sizes.items():
            (folder / f"gpt-{size}.yaml").write_text(GPT.format(layers=layers, width=width, heads=heads))
            (folder / f"own-{size}.py").write_text(OWN.format(layers=layers, width=width, heads=heads))
        (folder / "small.yaml").write_text(GPT.format(layers=1, width=64, heads=1))
        # measures this machine once for all that come after, and leaves bytecode, as an installed package has it
        explain(folder, "small.yaml", ["budget=1 steps"])
        explain(folder, "small.yaml", DEVICES["64 devices"])
        for _ in rounds(1 if asked.quick or asked.smoke else asked.repeats, asked.within):
            for recipe in sorted(path.name for path in folder.glob("*-*b.*")):
                for words, more in DEVICES.items():
                    found.setdefault(f"{Path(recipe).stem}, {words}", []).append(explain(folder, recipe, more))
    report.conditions = {
        "load_average": os.getloadavg(),
        "machine": "probed before; nothing else of an earlier command is kept",
    }
    for arm, taken in found.items():
        report.arm(f"{arm}: wall", "s", [one.wall_s for one in taken])
        report.arm(f"{arm}: CPU", "s", [one.cpu_s for one in taken])
        report.arm(f"{arm}: peak memory", "bytes", [one.peak_bytes for one in taken])
    slowest, busiest = (max(report.arms[f"{arm}: {which}"]["median"] for arm in found) for which in ("wall", "CPU"))
    largest = max(one.peak_bytes for taken in found.values() for one in taken)
    report.bars += [
        Bar("slowest of all, seconds", slowest, SECONDS, at_least=False),
        Bar("slowest of all, seconds of CPU", busiest, SECONDS, at_least=False),  # what it takes where nothing else runs
        Bar("most memory of all, bytes", largest, PEAK_BYTES, at_least=False),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
