"""The lowest layer: errors that help, units, budgets, named parts, events, and one tree with several renderings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flatout.base.budget import Budget
from flatout.base.errors import FlatoutError, RecipeError, Stopped, UsageError, did_you_mean
from flatout.base.events import EventLog, read_events
from flatout.base.source import source_text
from flatout.base.specs import Spec, import_named, pick
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine, to_data, to_text
from flatout.base.units import parse_bytes, parse_seconds, show_bytes, show_count, show_rate, show_seconds, split_quantity

# ---- errors ----


def test_did_you_mean() -> None:
    assert did_you_mean("hiden", ["hidden", "norm"]) == "did you mean 'hidden'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"


def test_exit_codes() -> None:
    assert (FlatoutError.exit_code, UsageError.exit_code, RecipeError(["x"]).exit_code) == (1, 2, 2)
    assert Stopped("SIGTERM", 143, "saved").exit_code == 143


def test_a_recipe_error_lists_everything() -> None:
    assert str(RecipeError(["a: b"], "r.yaml")) == "1 mistake in r.yaml:\n  - a: b"
    assert str(RecipeError(["a", "b"])).startswith("2 mistakes in recipe:")


# ---- units ----


@pytest.mark.parametrize(
    ("text", "seconds"), [("30 s", 30), ("10 min", 600), ("1.5h", 5400), ("2 days", 172800), ("250 ms", 0.25), ("1e2 s", 100)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(("text", "size"), [("512 MB", 512 * 10**6), ("2 GiB", 2**31), ("1kb", 1000), ("7 B", 7)])
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "min", "10 parsecs", "-3 s", "3 s 4", "1..2 s"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(UsageError):
        parse_seconds(text)
    with pytest.raises(UsageError):
        parse_bytes(text)


def test_split_quantity() -> None:
    assert split_quantity("1_000 Steps") == (1000.0, "steps")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (587_123, "587k"), (39.8e6, "39.8M"), (999_600, "1M"), (999.4, "999"), (1.5e13, "15T"), (0.0123, "0.0123"),
     (float("inf"), "inf"), (-2500, "-2.5k"), (1.5e16, "1.5e+16"), (2e-9, "2e-09")],
)  # fmt: skip
def test_show_count(value: float, text: str) -> None:
    assert show_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2e-6, "2 us"), (0.0123, "12.3 ms"), (9.876, "9.88 s"), (75, "1 min 15 s"), (59.999, "60 s"), (7325, "2 h 02 min")],
)
def test_show_seconds(value: float, text: str) -> None:
    assert show_seconds(value) == text


def test_show_the_rest() -> None:
    assert show_rate(123_456, "tokens") == "123k tokens/s"
    assert [show_bytes(n) for n in (0, 999, 1500, 2.5e9)] == ["0 B", "999 B", "1.5 kB", "2.5 GB"]


# ---- budgets ----


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("3 epochs", 3, "epochs"), ("0.5 epoch", 0.5, "epochs"), ("2000 steps", 2000, "steps"), ("1e9 tokens", 1e9, "tokens"),
     ("10 min", 600, "seconds"), ("5 USD", 5, "usd"), ("200 Wh", 200, "wh"), ("1 kWh", 1000, "wh"), ("3600 J", 1, "wh")],
)  # fmt: skip
def test_budgets(text: str, amount: float, unit: str) -> None:
    budget = Budget.parse(text)
    assert (budget.amount, budget.unit, budget.target) == (amount, unit, None)
    assert Budget.parse(str(budget)) == budget


def test_a_budget_with_an_aim() -> None:
    budget = Budget.parse("Accuracy >= 0.94 within 20 epochs")
    assert budget.target is not None
    assert (budget.target.metric, budget.amount, budget.unit) == ("accuracy", 20, "epochs")
    assert budget.target.reached(0.94) and not budget.target.reached(0.93)
    assert str(budget) == "accuracy >= 0.94 within 20 epochs"
    falling = Budget.parse("loss <= 1.5 within 10 min").target
    assert falling is not None and falling.reached(1.5) and not falling.reached(1.6)


@pytest.mark.parametrize(
    "text", ["", "3", "soon", "3 bananas", "0 steps", "-3 epochs", "accuracy >= 0.9", "accuracy > 0.9 within 1 h"]
)
def test_no_budget(text: str) -> None:
    with pytest.raises(UsageError, match="budget"):
        Budget.parse(text)


def test_counted_samples() -> None:
    assert Budget.parse("1.5 epochs").samples(101, 8, 1) == 152
    assert Budget.parse("10 steps").samples(101, 8, 1) == 80
    assert Budget.parse("1000 tokens").samples(101, 8, 64) == 16
    assert Budget.parse("1e-9 epochs").samples(101, 8, 1) == 1


# ---- named parts ----


@pytest.mark.parametrize("written", ["cosine", {"cosine": {"warmup": 100}}, {"crop": 4}, {"flip": None}])
def test_specs_are_written_as_they_were_read(written: Any) -> None:
    assert Spec.parse(Spec.parse(written).written()) == Spec.parse(written)


@pytest.mark.parametrize("written", [3, None, [], {}, {"a": 1, "b": 2}])
def test_no_spec(written: Any) -> None:
    with pytest.raises(UsageError, match="expected a name"):
        Spec.parse(written)


def test_calling_a_spec_checks_its_options() -> None:
    def crop(padding: int = 1, mode: str = "zero", *, rows: int = 0) -> tuple[int, str, int]:
        return padding, mode, rows

    assert Spec.parse({"crop": 4}).call(crop) == (4, "zero", 0)
    assert Spec.parse({"crop": {"mode": "reflect"}}).call(crop, rows=3, unused=1) == (1, "reflect", 3)
    with pytest.raises(UsageError, match=r"crop has no option 'pading'; did you mean 'padding'\?"):
        Spec.parse({"crop": {"pading": 4}}).call(crop)
    with pytest.raises(UsageError, match="flip takes no value, got 4"):
        Spec.parse({"flip": 4}).call(lambda: None)


def test_pick_and_import() -> None:
    assert pick({"a": 1}, "a", "thing") == 1
    with pytest.raises(UsageError, match=r"unknown thing 'mlpp'; did you mean 'mlp'\?"):
        pick({"mlp": 1}, "mlpp", "thing")
    assert import_named("os.path:join", "it") is os.path.join
    with pytest.raises(UsageError, match="can't import 'nonsuch'"):
        import_named("nonsuch:x", "model")
    with pytest.raises(UsageError, match="'os' has no 'nonsuch'"):
        import_named("os:nonsuch", "model")


# ---- events ----


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.emit("step", step=1, loss=0.5)
        log.emit("odd", what=Path("a"))
    with EventLog(path) as log:
        log.emit("step", step=2, loss=float("nan"))
    events = list(read_events(path))
    assert [event["kind"] for event in events] == ["step", "odd", "step"]
    assert events[0]["t"] <= events[1]["t"]
    assert events[1]["what"] == "a"


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.emit("first")
    with path.open("ab") as file:
        file.write(b'{"kind": "tor')
    assert [event["kind"] for event in read_events(path)] == ["first"]
    with EventLog(path) as log:
        log.emit("second")
    assert [event["kind"] for event in read_events(path)] == ["first", "second"]
    assert list(read_events(tmp_path / "nonsuch")) == []


def test_a_broken_observer_is_dropped_and_said() -> None:
    seen: list[str] = []

    def broken(event: Any) -> None:
        raise RuntimeError("no screen")

    log = EventLog(None, (broken, lambda event: seen.append(event["kind"])))
    log.emit("one")
    log.emit("two")
    assert sorted(seen) == ["observer_dropped", "one", "two"]


def test_a_full_disk_does_not_end_a_run() -> None:
    with EventLog(Path("/dev/full")) as log:
        log.emit("step")
        log.emit("step")
    assert log.lost == 2


# ---- one tree ----


DOC = Doc(
    (
        TextLine("Title"),
        Fields({"rate": 3.5, "shown": Cell(1, "one")}),
        Table(
            "rows",
            (TableColumn("name", "name"), TableColumn("n", "n", right=True), TableColumn("hidden", "hidden", shown=False)),
            [{"name": "a", "n": Cell(1000, "1k"), "hidden": True}, {"name": "long", "n": None}],
            fold=[{"name": "folded", "n": 2}],
            fold_note="more like it",
        ),
        Table("aside", (TableColumn("x", ""),), [{"x": False}], in_json=False),
    )
)


def test_text_for_people() -> None:
    assert to_text(DOC) == "Title\nname   n\na     1k\nlong\n(1 more like it)\noff"


def test_data_for_programs() -> None:
    assert to_data(DOC) == {
        "rate": 3.5,
        "shown": 1,
        "rows": [
            {"name": "a", "n": 1000, "hidden": True},
            {"name": "long", "n": None, "hidden": None},
            {"name": "folded", "n": 2, "hidden": None},
        ],
    }
    assert json.loads(json.dumps(to_data(DOC))) == to_data(DOC)


# ---- source ----

FACTOR = 2


def helper(value: int) -> int:
    return value * FACTOR


def uses_helper(value: int) -> int:
    return helper(value) + len("x")


def test_source_follows_the_users_own_code() -> None:
    text = source_text(uses_helper)
    assert "return value * FACTOR" in text
    assert "FACTOR = 2" in text
    assert "def len" not in text
    assert source_text(json.dumps) == "", "installed libraries are left out"


def test_libraries_of_another_environment_are_no_code_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/far_library.py").write_text("def work():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    import far_library  # type: ignore[import-not-found]

    assert source_text(far_library.work) == ""


def test_source_of_what_has_no_file() -> None:
    def made(body: str) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(f"def f(x):\n    return {body}", space)
        return space["f"]

    assert source_text(made("x + 1")) == source_text(made("x + 1")) != source_text(made("x + 2"))
