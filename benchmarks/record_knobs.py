"""Records every knob on five models: seconds, memory, failures, one step compared, training side by side. Tests replay it."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _small_models import written
from gpt2 import Size as GptSize
from gpt2 import recipe_of as gpt2_recipe
from resnet50 import LR, MOMENTUM, WEIGHT_DECAY, in_memory, network
from resnet50 import Size as PhotoSize
from torch import nn

import flatout as fo
from flatout.engine.job import Job
from flatout.engine.settings import Settings, value_of, with_values
from flatout.machine.ceilings import Ceilings
from flatout.machine.device import device_name, pick_device
from flatout.machine.operators import with_operators
from flatout.machine.probe import probe
from flatout.measure.receipt import KEPT
from flatout.models.gpt import gpt
from flatout.plan.choose import choose, choose_in, situation_of
from flatout.plan.knobs.all import KNOBS, conflicts
from flatout.plan.options import SearchTerms
from flatout.plan.prediction import Prediction
from flatout.plan.search import KnobSearch
from flatout.plan.situation import Situation
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.recording import Recording, shown
from flatout.plan.trials.reports import Ask
from flatout.plan.work import work_of
from flatout.recipe.build import build_job

REPLAYS = Path(__file__).parent.parent / "tests" / "replays"
STEPS = 20_000  # of the run that is planned for


def gpt2(smoke: bool) -> fo.Recipe:
    if smoke:
        return shakespeare(smoke)
    path = Path(tempfile.mkdtemp()) / "tokens.bin"
    import numpy as np

    np.random.default_rng(0).integers(0, 50257, 20_000_000, dtype=np.uint16).tofile(path)
    made = gpt2_recipe(GptSize(), STEPS, path, pick_device("auto"))
    return made.model_copy(update={"settings": {}})


def resnet50(smoke: bool) -> fo.Recipe:
    size = replace(PhotoSize(), pixels=32, batch=16) if smoke else PhotoSize()
    data = in_memory(size, 64 if smoke else 1024)
    optimizer = {"sgd": {"momentum": MOMENTUM}}
    return _recipe(data, lambda: network(size), size.batch, LR, weight_decay=WEIGHT_DECAY, optimizer=optimizer)


def cnn(smoke: bool) -> fo.Recipe:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20_000, 1, 28, 28), dtype=torch.uint8, generator=draw)
    data = fo.data.arrays(x, torch.randint(0, 10, (20_000,), generator=draw), layout="chw", normalize="auto")
    return _recipe(data, "convnet", 256, 1e-3)


def mlp(smoke: bool) -> fo.Recipe:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(100_000, 39, generator=draw), torch.randint(0, 2, (100_000,), generator=draw)
    return _recipe(fo.data.arrays(x, y), {"mlp": {"hidden": [512, 256]}}, 1024 if smoke else 8192, 1e-3)


def shakespeare(smoke: bool) -> fo.Recipe:
    layers, width, window, batch = (2, 64, 32, 8) if smoke else (6, 384, 256, 64)
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 65, (20_000, window), generator=draw)

    def model() -> nn.Module:
        return gpt(65, window, layers=layers, heads=2 if smoke else 6, width=width, dropout=0.2)

    return _recipe(written(x, vocabulary=65), model, batch, 1e-3, objective="next_token", clip=1.0)


MODELS: dict[str, Callable[[bool], fo.Recipe]] = {
    "mlp": mlp, "cnn": cnn, "shakespeare": shakespeare, "resnet50": resnet50, "gpt2": gpt2,
}  # fmt: skip


def _recipe(data: Any, model: Any, batch: int, lr: float, **more: Any) -> fo.Recipe:
    return fo.Recipe(data=data, model=model, batch=batch, lr=lr, budget=f"{STEPS} steps", evaluate=None, **more)


@dataclass(frozen=True)
class Keeping(Situation):
    """Keeps every prediction: a replay asks for the same ones, on a machine that can't trace the kernels of this one."""

    kept: dict[str, Prediction] = field(default_factory=dict)

    def predicted(self, settings: Settings) -> Prediction:
        found = self.kept[shown(settings.to_dict())] = super().predicted(settings)
        return found


def situation_to_keep(name: str, job: Job, ceilings: Ceilings, device: torch.device) -> Keeping:
    """With the operators of its model timed, as a plan has them."""
    plain = Settings(device=str(device))
    forms = (choose(job, {}, ceilings, name).settings, plain, replace(plain, precision="bf16"))
    timed = with_operators(ceilings, device, [one for form in forms for one in work_of(job, form).operations], 20.0)
    return Keeping(**vars(situation_of(job, {}, timed)))


def record(
    name: str,
    smoke: bool,
    limit_s: float,
    ceilings: Ceilings,
    device: torch.device,
    kept: dict[str, Any] | None,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """The search as a long run would make it, then each knob by itself and each left out of what was found.

    What was `kept` by a plan of the same model is not measured again, and takes the time that it took there. `keep` gets all
    that is known when the search is done, and after each trial that comes after it.
    """
    recipe = MODELS[name](smoke)
    job = build_job(recipe)
    bench = Bench(job, device)
    recording = Recording(kept, bench)
    clock = recording.clock
    began_s = clock()
    s = situation_to_keep(name, job, ceilings, device)
    plan = choose_in(s, name)
    search = KnobSearch(s, plan.settings, KNOBS, recording, SearchTerms(STEPS, limit_s, analyze=True), clock=clock, say=_say)
    receipt = search.run()

    def known() -> dict[str, Any]:
        return {
            "model": name,
            "device": device_name(device),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "batch": job.batch,
            "steps_left": STEPS,
            "limit_s": limit_s,
            "took_s": round(clock() - began_s, 1),
            "smoke": smoke,
            "plain": asdict(s.plain),
            "foretold": {words: asdict(prediction) for words, prediction in s.kept.items()},
            "default": plan.settings.to_dict(),
            "kept": [f"{entry.name}={entry.value}" for entry in receipt.entries if entry.verdict == KEPT],
            "recording": recording.to_dict(),
            "receipt": receipt.to_dict(),
        }

    keep(known())
    best = replace(plan.settings, **receipt.settings)
    first_s = max((entry.first_s or 0.0 for entry in receipt.entries), default=0.0)  # mostly of a compiler
    for standing in (best, search.reference):
        for settings, cost_s in changed(s, standing, undo=standing == best):
            cost_s = max(cost_s, first_s if settings.compile != "off" else 0.0)
            if bench.is_lost or clock() - began_s + cost_s > limit_s:
                continue
            report = recording.attempt(Ask(settings.to_dict(), standing.to_dict(), search.reference.to_dict()))
            step = report.failure or f"{min(report.steps_s):.6f} s"
            _say(f"  {shown(settings.to_dict())}: {step} {report.why[:100]} (took {report.took_s:.1f} s)")
            keep(known())
    bench.close()


def changed(s: Situation, standing: Settings, *, undo: bool) -> Iterator[tuple[Settings, float]]:
    """By one knob each, and what its first step should cost; `undo`: also what stands without each that is on."""
    for knob in KNOBS:
        others = [(candidate.value, candidate.cost_s) for candidate in knob.candidates(s, standing)]
        if undo and value_of(standing, knob.name) != knob.off:
            others.append((knob.off, 0.0))
        for value, cost_s in others:
            settings = with_values(standing, {knob.name: value})
            if not conflicts(settings):
                yield settings, cost_s


def _write(path: Path, known: dict[str, Any]) -> None:
    path.write_text(json.dumps(known, indent=1) + "\n")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPLAYS)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for each model, about")
    parser.add_argument("--kept", type=Path, help="what a plan of the model kept: a file in the cache's folder of trials")
    parser.add_argument("--smoke", action="store_true", help="small sizes, for the code path alone")
    asked = parser.parse_args()
    if asked.kept and len(asked.only) != 1:
        parser.error("--kept is of one model: --only says of which")
    kept = json.loads(asked.kept.read_text())["recording"] if asked.kept else None
    device = pick_device("auto")
    ceilings = probe(device, None, quick=True).ceilings
    asked.out.mkdir(parents=True, exist_ok=True)
    kind = device_name(device).lower().replace(" ", "-") if device.type == "cuda" else "cpu"
    (asked.out / f"ceilings-{kind}.json").write_text(json.dumps(ceilings.to_dict(), indent=1) + "\n")
    for name in asked.only:
        _say(f"{name}:")
        path = asked.out / f"{name}-{kind}.json"
        record(name, asked.smoke, asked.limit, ceilings, device, kept, partial(_write, path))
        found = json.loads(path.read_text())
        stays = ", ".join(found["kept"]) or "nothing"
        print(f"{name}: kept {stays}; {found['receipt']['stopped']}; {found['took_s']} s", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
