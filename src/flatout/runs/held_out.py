"""What a trained model says about each held-out row, next to what is true: for pictures of how well it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.data import Data
from flatout.data.fitted.text_pieces import text_pieces
from flatout.data.fitted.token_rows import TextCode, TextHost
from flatout.data.source import Batch, Source
from flatout.engine.evaluation import looking
from flatout.recipe.build import build_job
from flatout.runs.evaluate import own_data, own_part
from flatout.runs.in_use import put_to_use
from flatout.runs.trained import CACHE, TrainedRun

_MOST_PROBABILITIES = 50_000_000  # kept for curves; with more rows and classes there are none
_PROMPTS, _PROMPT_TOKENS = 3, 16


@dataclass(frozen=True)
class HeldOut:
    """`objective` is its name. `truth` and `prediction` have a row each; `own` is the probability of the true class, and
    `probabilities` those of all classes. Those that the objective does not have are empty."""

    part: str
    objective: str
    source: Source = field(repr=False)
    truth: Tensor = field(default_factory=lambda: torch.empty(0))
    prediction: Tensor = field(default_factory=lambda: torch.empty(0))
    own: Tensor = field(default_factory=lambda: torch.empty(0))
    probabilities: Tensor = field(default_factory=lambda: torch.empty(0))
    class_names: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.truth)

    def name_of(self, number: int) -> str:
        return self.class_names[number] if number < len(self.class_names) else str(number)

    def images(self, rows: Sequence[int]) -> list[Tensor]:
        """These rows as uint8 images [height, width, 1 or 3]; empty if rows are none."""
        batch = self.source.read(torch.tensor(rows, dtype=torch.int64))
        if "pixels" in batch:
            return [_photo(batch, place) for place in range(len(rows))]
        return [] if "x" not in batch else _pictures(batch["x"])


def held_out(run: TrainedRun, *, device: str = "auto", cache: Path | str | None = CACHE) -> HeldOut:
    """Of the validation part, or of the test part if there is no other. With the weights that `predict` and `evaluate` use."""
    kept = None if cache is None else Path(cache)
    job = build_job(run.recipe, kept, data=own_data(run, kept), trained=True)
    part = "test" if job.data.validation is None and job.data.test is not None else "validation"
    source, objective = own_part(run.name, job.data, part), job.objective.name
    if objective == "next_token":
        return HeldOut(part, objective, source, prompts=_prompts(job.data, source))
    if objective not in ("classify", "binary", "regress"):
        raise UsageError(f"there are pictures of predictions for classify, binary, regress and next_token; this is {objective}")
    used = put_to_use(run.folder, job, run.plan.settings, device)
    truths, predictions, owns, probabilities, size = [], [], [], [], 0
    with used.threads(), looking(used.model, used.precision, used.device):
        for batch in used.feed(job, source, source.stored_rows(run.plan.batch)):
            said, truth = job.objective.predict(used.model, batch), batch["y"]
            if truth.dim() > 1 and truth[0].numel() != 1:
                raise UsageError(f"there are pictures for one target a row; a row of {run.name} has {list(truth.shape[1:])}")
            truths.append(truth.flatten().cpu())
            predictions.append(said["prediction"].flatten().cpu())
            if (odds := said.get("probabilities")) is not None:
                owns.append(odds.gather(1, truth.long().view(-1, 1)).flatten().float().cpu())
                size += odds.numel()
                if size <= _MOST_PROBABILITIES:
                    probabilities.append(odds.float().cpu())
    known = size <= _MOST_PROBABILITIES and bool(probabilities)
    return HeldOut(
        part, objective, source, torch.cat(truths), torch.cat(predictions), torch.cat(owns) if owns else torch.empty(0),
        torch.cat(probabilities) if known else torch.empty(0), tuple(job.data.fitted.host.class_names or ()),
    )  # fmt: skip


def _photo(batch: Batch, place: int) -> Tensor:
    """Of ragged rows: all pixels one after another."""
    height, width, start = (int(batch[name][place]) for name in ("height", "width", "start"))
    return batch["pixels"][start : start + height * width * 3].view(height, width, 3)


def _pictures(x: Tensor) -> list[Tensor]:
    """Numbers from their lowest to their highest, if a row has the shape of an image."""
    if x.dim() == 3:
        x = x[..., None]
    elif x.dim() == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        x = x.permute(0, 2, 3, 1)
    if x.dim() != 4 or x.shape[3] not in (1, 3) or min(x.shape[1:3]) < 6:
        return []
    numbers = x.float()
    low, high = numbers.min(), numbers.max()
    return list(((numbers - low) * (255 / (high - low).clamp(min=1e-12))).to(torch.uint8))


def _prompts(data: Data, source: Source) -> tuple[str, ...]:
    """How held-out texts begin. Empty if tokens can't be written as text."""
    host = data.fitted.host
    if not isinstance(host, TextHost) or not host.code.takes_text or source.stream is not None or not len(source):
        return ()
    rows = torch.arange(_PROMPTS) * (len(source) // _PROMPTS)
    return tuple(_text(host.code, row[:_PROMPT_TOKENS].tolist()) for row in source.read(rows.unique())["x"])


def _text(code: TextCode, ids: Sequence[int]) -> str:
    """Without pieces of characters at its ends."""
    pieces = text_pieces(code, [])
    return ("".join(map(pieces.add, ids)) + pieces.rest()).strip("\ufffd")
