"""The record of a run in its folder: what is written at its start and end, and `Run`, which reads it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from flatout.base.errors import Diverged, MissingFile, Stopped, StoreError, UsageError, did_you_mean
from flatout.base.events import Event, read_events
from flatout.base.kinds import check_kinds
from flatout.base.tree import Doc, Fields, TextLine, to_text
from flatout.data.kept import remember
from flatout.engine.job import Job
from flatout.machine.facts import read_facts
from flatout.measure.receipt import Receipt
from flatout.plan.explain import explain as explain_plan
from flatout.plan.plan import Plan
from flatout.recipe.load import read_recipe, recipe_from
from flatout.recipe.schema import Recipe
from flatout.recipe.slips import OF_A_RUN
from flatout.runs.in_use import as_trained, precision_on
from flatout.runs.trained import OtherData, job_of, trained_model
from flatout.store.run_folder import RATE_FILE, RunFolder, find
from flatout.world.watch import Failed, Lost, StoreLost

_OBJECTS = ("model", "objective", "optimizer")
"""Keys of a recipe that may be classes or functions."""

if TYPE_CHECKING:
    from flatout.runs.rates.found import FoundRate


@dataclass(frozen=True)
class Origin:
    """Where a recipe came from, as in origin.json. `source`: the file in the run's folder that holds it, None if none can."""

    folder: str
    source: Literal["recipe.py", "recipe.json"] | None
    file: str | None = None
    overrides: tuple[str, ...] = ()
    pins: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, written: Any) -> Origin:
        check_kinds(cls, written)
        return cls(**written)


def write_beginning(
    folder: RunFolder, recipe: Recipe, plan: Plan, job: Job, receipt: Receipt | None, found: Mapping[str, Any] | None = None
) -> None:
    """`found`: the learning rate that was searched for, and its evidence."""
    python = recipe.source is not None and recipe.source.suffix == ".py"
    objects = callable(recipe.model) or callable(recipe.objective) or callable(recipe.optimizer)
    overrides, pins = recipe.given
    origin = Origin(
        str(recipe.folder.resolve()),
        "recipe.py" if python else None if objects else "recipe.json",
        str(recipe.source.resolve()) if recipe.source else None,
        tuple(overrides),
        dict(pins),
    )
    folder.write("recipe.json", recipe.written())
    folder.write("data.json", remember(job.data))
    folder.write("origin.json", asdict(origin))
    if python:
        assert recipe.source is not None
        folder.write_bytes("recipe.py", recipe.source.read_bytes())
    if recipe.draft:
        folder.write_bytes("draft.yaml", recipe.draft.encode())
    folder.write("environment.json", read_facts().to_dict())
    if receipt is not None:
        folder.write("receipt.json", receipt.to_dict())
    if found is not None:
        folder.write(RATE_FILE, found)
    folder.write("plan.json", plan.to_dict())  # last: a run has begun once its plan is written


def write_result(folder: RunFolder, result: dict[str, Any]) -> None:
    with suppress(OSError):  # the error that ended the run is the one to show
        folder.write("result.json", result)


def so_far(folder: RunFolder) -> dict[str, Any]:
    """Steps, samples and metrics of a run that did not finish, from its events."""
    last: dict[str, Event] = {event.get("kind", ""): event for event in read_events(folder.events_path)}
    step, evaluation = last.get("step", {}), last.get("evaluation", {})
    metrics = {"train_loss": step.get("loss"), **evaluation.get("metrics", {})}
    return {"steps": step.get("step"), "samples": step.get("samples"), "metrics": metrics} if step else {}


def status_after(error: BaseException) -> str:
    if isinstance(error, Stopped | KeyboardInterrupt):
        return "stopped"
    return "diverged" if isinstance(error, Diverged) else "failed"


def status_of(news: Failed | Lost | StoreLost) -> str:
    """A lost process interrupts the run, as the end of a single process does."""
    return "failed" if isinstance(news, Failed) else "interrupted"


@contextmanager
def said_in_words(folder: RunFolder) -> Iterator[None]:
    """Turns an error of the disk into a message with a remedy. A run that had not begun leaves no folder."""
    try:
        yield
    except OSError as error:
        kept = "its checkpoints are unchanged: fix this and run the same command to resume from the last one"
        if not folder.begun:
            shutil.rmtree(folder.path, ignore_errors=True)
            kept = "nothing was trained: fix this, or choose another folder with --runs"
        place = error.filename or folder.path
        raise StoreError(f"{place}: {error.strerror or error}; {kept}") from error


class Run:
    """What happened: events, checkpoints, result, environment. A view of its folder."""

    def __init__(self, folder: RunFolder, recipe: Recipe | None = None) -> None:
        self.folder = folder
        self._recipe = recipe

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def result(self) -> dict[str, Any]:
        """status, steps, samples, train_seconds, samples_per_s, metrics, plan, ..."""
        return self.folder.result

    @property
    def plan(self) -> Plan:
        return self.folder.parsed("plan.json", Plan.from_dict)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run. One made of Python objects is known only to the process that made it."""
        if self._recipe is None:
            self._recipe = _stored_recipe(self.folder)
        return self._recipe

    def events(self) -> Iterator[Event]:
        return read_events(self.folder.events_path)

    @property
    def receipt(self) -> Receipt | None:
        """The trials of settings before the run began; None if there were none."""
        try:
            return self.folder.parsed("receipt.json", Receipt.from_dict)
        except MissingFile:
            return None

    @property
    def found_lr(self) -> FoundRate | None:
        """The search for its learning rate, with `lr: auto`; None: the recipe gave one."""
        from flatout.runs.rates.found import FoundRate  # here: a run that only trains starts sooner without it

        try:
            return self.folder.parsed(RATE_FILE, FoundRate.from_dict)
        except MissingFile:
            return None

    def explain_doc(self) -> Doc:
        degraded = tuple(event for event in self.events() if event.get("kind") in ("degraded", "damaged"))
        doc = explain_plan(self.plan, self.result, degraded, self.receipt)
        if (found := self.found_lr) is None:
            return doc
        words = f"learning rate: {found.rate:.3g}, searched for when the run started: {found.why}"
        return Doc((*doc.nodes, TextLine(), TextLine(words), Fields({"lr": found.lr, "lr_why": found.why})))

    def explain(self) -> str:
        """The plan with its reasons, predicted and measured."""
        return to_text(self.explain_doc())

    def model(self, *, bare: bool = False) -> nn.Module:
        """The trained model, on the CPU, in eval mode. It takes raw rows and prepares them as in training.

        `PreparedModel` says what it takes for each kind of data. `bare`: only the module that was trained, as the recipe made
        it, which takes prepared batches: normalized, cropped, with the columns of a table as numbers.
        """
        from flatout.engine.prepared_model import PreparedModel  # here: a run that only trains starts sooner without it

        job, settings = job_of(self.folder, self.recipe), self.plan.settings
        model = as_trained(settings, trained_model(self.folder, job), torch.device("cpu")).eval()
        if bare:
            return model
        return PreparedModel(model, job.data.fitted, job.objective, partial(precision_on, settings)).eval()

    def generate(
        self,
        prompt: Any,
        *,
        tokens: int = 200,
        greedy: bool = False,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        stream: bool = False,
        use_cache: bool = True,
        device: str = "auto",
        say: Callable[[str], None] | None = None,
    ) -> Any:
        """Continues a text, or each text of a list; returns the new text without the prompt. Token ids continue to token ids.

        `tokens`: how many to make at most. `greedy`: always the most likely token; otherwise `temperature`, `top_k` and
        `top_p` say how varied the choice is. `stop`: texts to end before. The same `seed` gives the same text; prompt i of a
        list uses seed + i. `stream`: an iterator of pieces as they are made, of pairs (i, piece) for a list. `use_cache=False`
        computes all tokens again for each new one. `say` gets notes, such as that a text is longer than the model's window; by
        default they are warnings.
        """
        from flatout.engine.generation.options import GenerateOptions  # here: a run that only trains starts sooner without it
        from flatout.runs.generate import generate

        options = GenerateOptions(tokens, greedy, temperature, top_k, top_p, stop, seed)
        how: Any = {"stream": stream, "use_cache": use_cache, "device": device, "say": say}
        return generate(self.folder, self.recipe, self.plan.settings, prompt, options, **how)

    def predict(
        self,
        data: OtherData,
        *,
        keep: str | Sequence[str] = (),
        each_class: bool | None = None,
        device: str = "auto",
        say: Callable[[str], None] | None = None,
    ) -> Any:
        """Predictions for every row: for a DataFrame a DataFrame with its index, otherwise NumPy arrays by name.

        `data` is what `fo.predict` takes: a DataFrame, arrays, a file, a Dataset. `keep`: columns of the data to put before
        the predictions. `each_class`: a column probability_NAME for each class; by default in a DataFrame only. `say` gets a
        line for each column with values that training never saw; by default these are warnings.
        """
        from flatout.runs.predict import predict  # here: a run that only trains starts sooner without it
        from flatout.runs.predicted import in_form_of, is_table

        each = each_class if each_class is not None or is_table(data) else False
        notes: list[str] = []
        columns = predict(self, data, keep=keep, each_class=each, device=device, say=say or notes.append)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return in_form_of(data, columns)

    def evaluate(
        self,
        data: OtherData | None = None,
        *,
        part: str | None = None,
        metrics: Any = None,
        best: bool = False,
        device: str = "auto",
        say: Callable[[str], None] | None = None,
    ) -> dict[str, float]:
        """Metrics on the rows held out from training, on its `part` "test" or "train", or on other `data` with labels.

        The rest is as in `fo.evaluate`. `say` gets a line for each column with values that training never saw; by default
        these are warnings.
        """
        from flatout.runs.evaluate import evaluate  # here: a run that only trains starts sooner without it

        notes: list[str] = []
        found = evaluate(self, data, part=part, metrics=metrics, best=best, device=device, say=say or notes.append)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return found

    def report(self, out: Path | str | None = None, *, evaluate: bool = False) -> Path:
        """One self-contained HTML page that shows how the run was trained, as `fo.report`. Returns its path.

        `evaluate`: also how well the model does on held-out rows, computed now.
        """
        import flatout  # the front door: pages are made above runs

        return flatout.report(self, out=out, evaluate=evaluate)

    def plot(self) -> Any:
        """A matplotlib figure of the losses and metrics by steps."""
        from flatout.runs.plotting import plot_events  # here: a run that only trains starts sooner without it

        return plot_events(self.events(), self.name)

    if not TYPE_CHECKING:  # to a type checker, a run has only what it has

        def __getattr__(self, name: str) -> Any:
            """Called for names that a run does not have: habits of other libraries get an answer."""
            answer = OF_A_RUN.get(name)
            if answer is None and not name.startswith("_"):
                with suppress(StoreError):
                    answer = f"run.result['metrics'][{name!r}]" if name in self.folder.result.get("metrics", {}) else None
            raise AttributeError(f"a run has no {name!r}" + (f": {answer}" if answer else ""), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.folder.status}>"


def load(name: str | Path, *, runs: Path | str = "runs", recipe: Recipe | None = None, **objects: Any) -> Run:
    """A run by its name in `runs`, by its folder, or `last`.

    What it was made of in Python is given again: `model=Net`, `objective` or `optimizer`; or the whole `recipe`.
    """
    if recipe is not None and objects:
        raise UsageError(f"the recipe has {', '.join(objects)} already: give the recipe, or these keys")
    for key in objects:
        if key not in _OBJECTS:
            raise UsageError(f"load takes {', '.join(_OBJECTS)} of a run, not {key}; {did_you_mean(key, _OBJECTS)}")
    folder = find(Path(runs), str(name))
    return Run(folder, _stored_recipe(folder, **objects) if objects else recipe)


def _stored_recipe(folder: RunFolder, **objects: Any) -> Recipe:
    """`objects` are keys whose values no file can hold."""
    origin = folder.parsed("origin.json", Origin.from_dict)
    if origin.source is None:
        written = folder.parsed("recipe.json", dict)
        if lacking := [key for key in _OBJECTS if key not in objects and _is_code(written.get(key))]:
            again = ", ".join(f"{key}=..." for key in (*objects, *lacking))
            raise StoreError(
                f"{folder.name} was made with Python objects, which no file can hold: give {' and '.join(lacking)} again, "
                f"fo.load({folder.name!r}, {again})"
            )
        return recipe_from({**written, **objects}, Path(origin.folder), stored=True)
    if origin.source == "recipe.py":
        if objects:
            raise UsageError(f"{folder.name} has its recipe.py, which makes its {', '.join(objects)}: leave them out")
        folder.manifest.read("recipe.py")  # checks its checksum before it is executed
        return read_recipe(folder.path / "recipe.py", origin.overrides, origin.pins, moved_from=Path(origin.file or ""))
    return folder.parsed("recipe.json", lambda written: recipe_from({**written, **objects}, Path(origin.folder), stored=True))


def _is_code(written: Any) -> bool:
    """Whether a key of a stored recipe is the place of a class or a function: `module:name`."""
    name = next(iter(written), "") if isinstance(written, dict) else written
    return isinstance(name, str) and ":" in name
