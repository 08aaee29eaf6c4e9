"""`why`: from a package back to its run, plan, recipe and data, and whether the run still exists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.packaging.package import Package
from flatout.store.run_folder import open_run

_WIDEST = 38
_SHOWN_SETTINGS = ("device", "precision", "compile", "tier")


def lineage_doc(package: Package) -> Doc:
    card = package.card
    there, where = _run_now(Path(card["run"]["path"]), card["run"]["identity"])
    recipe, data, result = card["recipe"], card["data"], card["result"]
    settings = card["plan"]["settings"]
    steps = [
        ("package", str(package.path), f"hash {package.folder.hash}"),
        ("checked", ", ".join(_agreeing(card["parity"])), f"on {card['samples']['rows']} samples: {card['samples']['origin']}"),
        ("run", card["run"]["name"], where),
        ("result", _metrics(result.get("metrics") or {}), f"{result.get('steps')} steps"),
        ("plan", ", ".join(f"{name} {settings[name]}" for name in _SHOWN_SETTINGS if name in settings), ""),
        ("recipe", str(recipe.get("model")), f"objective {recipe.get('objective')}"),
        ("data", str(recipe.get("data")), f"{data['train_rows']:,} training rows, fingerprint {data['fingerprint'][:16]}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in card["versions"].items()), ""),
    ]
    if card["code"] is not None:
        steps.append(("code", card["code"], "must be installed where the package runs"))
    if (made := card.get("shrunk")) is not None:
        changes = ", ".join(made["changes"]) or "unchanged"
        steps.insert(1, ("shrunk", changes, f"from {made['from']['path']}, hash {made['from']['hash']}"))
    rows = [{"what": what, "is": _short(value), "details": details} for what, value, details in steps]
    columns = (TableColumn("what", ""), TableColumn("is", ""), TableColumn("details", ""))
    return Doc(
        (
            Fields({"package": str(package.path), "run_exists": there, "card": card}),
            TextLine(f"Where {package.path} comes from", strong=True),
            Table("lineage", columns, rows),
        )
    )


def _agreeing(parity: Mapping[str, Any]) -> list[str]:
    return [name for name, found in parity.items() if isinstance(found, Mapping)]


def _run_now(path: Path, identity: str) -> tuple[bool, str]:
    """Whether the run is still in its folder, and where."""
    try:
        same = open_run(path).identity == identity
    except FlatoutError:
        return False, f"no longer at {path}"
    return same, f"at {path}" if same else f"another run is at {path} now"


def _metrics(metrics: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float))


def _short(text: str) -> Cell:
    return Cell(text, text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "...")
