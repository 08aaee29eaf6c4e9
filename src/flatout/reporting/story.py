"""All that a run's folder tells about it, read once. What can't be read is named, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flatout.base.errors import MissingFile, StoreError
from flatout.base.events import Event
from flatout.measure.receipt import Receipt
from flatout.plan.plan import Plan
from flatout.reporting.log_scan import LogScan, scan_log
from flatout.runs.record import Origin
from flatout.store.run_folder import RATE_FILE, RunFolder

_Parsed = TypeVar("_Parsed")


@dataclass
class RunStory:
    """`troubles`: what could not be read, each with a remedy."""

    folder: RunFolder
    status: str
    about: Mapping[str, Any]
    result: Mapping[str, Any]
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    plan: Plan | None
    receipt: Receipt | None
    origin: Origin | None
    rate: Mapping[str, Any]
    draft: str | None
    log: LogScan
    troubles: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def events(self) -> list[Event]:
        """All but the log points."""
        return [event for _, event in self.log.others]

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Those of the result; of a run that has not ended, the newest ones."""
        if found := self.result.get("metrics"):
            return dict(found)
        for event in reversed(self.events):
            if event.get("kind") == "evaluation":
                return dict(event.get("metrics") or {})
        return {}

    @property
    def last_step(self) -> int | None:
        return int(self.log.numbers["step"][-1]) if self.log.count else None


def read_story(folder: RunFolder) -> RunStory:
    troubles: list[str] = []

    def parsed(name: str, build: Callable[[Any], _Parsed], otherwise: _Parsed, *, expected: bool) -> _Parsed:
        try:
            return folder.parsed(name, build)
        except MissingFile:
            if expected:
                troubles.append(f"{name} is missing, so the page has nothing of it")
        except StoreError as error:
            troubles.append(str(error))
        except OSError as error:
            troubles.append(f"{name} can't be read: {error.strerror or error}")
        return otherwise

    def text(name: str) -> str | None:
        try:
            return folder.manifest.read(name).decode(errors="replace")
        except MissingFile:
            return None
        except (StoreError, OSError) as error:
            troubles.append(str(error))
            return None

    nothing: Mapping[str, Any] = {}
    status = folder.status
    story = RunStory(
        folder, status,
        about=parsed("run.json", dict, nothing, expected=True),
        result=parsed("result.json", dict, nothing, expected=False),
        recipe=parsed("recipe.json", dict, nothing, expected=True),
        environment=parsed("environment.json", dict, nothing, expected=True),
        plan=parsed("plan.json", Plan.from_dict, None, expected=True),
        receipt=parsed("receipt.json", Receipt.from_dict, None, expected=False),
        origin=parsed("origin.json", Origin.from_dict, None, expected=True),
        rate=parsed(RATE_FILE, dict, nothing, expected=False),
        draft=text("draft.yaml"),
        log=_scanned(folder),
        troubles=troubles,
    )  # fmt: skip
    if not folder.path.is_dir():
        raise StoreError(f"{folder.path} vanished while it was read: it was moved or deleted; give the run's new place")
    story.troubles += [str(event["why"]) for event in story.events if event.get("kind") == "damaged"]
    if not story.log.count and not story.events:
        troubles.append("events.jsonl has no event: there are no curves")
    return story


def _scanned(folder: RunFolder) -> LogScan:
    try:
        return scan_log(folder.events_path)
    except OSError as error:
        raise StoreError(f"{folder.events_path} can't be read: {error.strerror or error}") from error
