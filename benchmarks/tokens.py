"""GPT-2 124M trains from a token file in host memory or on disk within 2% of the speed with the tokens on the GPU."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Report, gpu_or_leave, options, take_turns
from gpt2 import TINY, Size, recipe_of, steady_rate

import flatout as fo
from flatout.base.events import Event

TIERS = ("resident", "pinned", "mapped", "streamed")
TOKENS = 500_000_000  # 1 GB: mapped from its file, not read
SMOKE_TOKENS = 17_000_000  # just enough to be mapped
AT_ONCE = 50_000_000


def write_tokens(path: Path, size: Size) -> None:
    draw = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, size.tokens, AT_ONCE):
            draw.integers(0, size.vocabulary, min(AT_ONCE, size.tokens - start), dtype=np.uint16).tofile(file)


def arm(recipe: fo.Recipe, size: Size, cache: Path, notes: dict[str, Any]) -> Callable[[], float]:
    """Tokens/s between the log points after the run's first save."""

    def measure() -> float:
        events: list[Event] = []
        with tempfile.TemporaryDirectory() as runs:
            result = fo.run(recipe, runs=runs, fresh=True, cache=cache, observers=[events.append]).result
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        ledger = {row: round(spent_s, 4) for row, spent_s in result["ledger"].items() if spent_s}
        degraded = [f"{event['what']}: {event['why']}" for event in events if event["kind"] == "degraded"]
        notes[result["plan"]["settings"]["tier"]] = {
            "ledger": ledger,
            "peak_memory_bytes": result["peak_memory_bytes"],
            "degraded": degraded,
        }
        return steady_rate(events) * size.window

    return measure


def main() -> int:
    began_s = time.perf_counter()
    parser = options(__doc__, repeats=4)
    parser.add_argument("--tiers", nargs="+", choices=TIERS[1:], default=list(TIERS[1:]), help="to set against resident")
    asked = parser.parse_args()
    device = gpu_or_leave(asked.smoke)
    size = replace(TINY, tokens=SMOKE_TOKENS) if asked.smoke else replace(Size(), tokens=20 * 10**6 if asked.quick else TOKENS)
    steps, repeats = (40, 2) if asked.smoke else (48, 2) if asked.quick else (64, asked.repeats)
    report = Report("tokens", str(__doc__), device)
    notes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.bin"
        write_tokens(tokens, size)
        recipes = {tier: recipe_of(size, steps, tokens, device, tier=tier) for tier in ("resident", *asked.tiers)}
        arms = {tier: arm(recipe, size, Path(folder) / "cache", notes) for tier, recipe in recipes.items()}
        take_turns(arms, 1)  # compiling and autotuning; the cache of the mapped tier is filled
        for name, values in take_turns(arms, repeats, asked.within).items():
            report.arm(name, "tokens/s", values)
    report.conditions = {
        "steps": steps,
        "tokens": size.tokens,
        "file_bytes": 2 * size.tokens,
        "file_in_page_cache": True,
        "mapped": "rows come from the cache that the warm-up filled; streamed: from the mapped token file itself",
        "recipe": recipes["resident"].written() | {"data": "random tokens"},
        "runs": notes,
        "seconds": round(time.perf_counter() - began_s, 1),
    }
    for tier in asked.tiers:
        report.ratio(f"{tier} over resident", tier, "resident", at_least=0.98)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
