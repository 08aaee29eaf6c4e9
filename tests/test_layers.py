"""A module imports only from lower layers, and siblings never import each other. Imports inside functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "flatout"

LAYERS = {
    "base": 0,
    "measure": 1,
    "machine": 2,
    "data": 3,
    "models": 3,
    "objectives": 3,
    "store": 3,
    "engine": 4,
    "doctor": 4,  # findings on any script
    "recipe": 5,
    "building": 6,
    "drafting": 6,
    "reading": 6,
    "trained": 6,
    "plan": 6,
    "planned": 7,
    "running": 8,
    "verbs": 9,
    "fleet": 9,  # starts `python -m flatout` elsewhere
    "boost": 10,  # tries remedies on any script
    "drill": 10,
    "survey": 10,  # needs the plan that verbs makes
    "cli": 12,
    "testing": 11,
}
FREE = {"__init__", "__main__"}  # the package's front door hands out names; it holds no code


def unit_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide which layer they reach"
            if node.module == "flatout":
                yield from ((node.lineno, f"flatout.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module or ""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_every_module_has_a_layer() -> None:
    assert {unit_of(path) for path in modules()} - FREE <= set(LAYERS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downward(path: Path) -> None:
    unit = unit_of(path)
    if unit in FREE:
        return
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "flatout" or len(parts) == 1 or parts[1] == "__version__":
            continue
        reached = parts[1]
        assert reached == unit or LAYERS[reached] < LAYERS[unit], (
            f"{path}:{line}: {unit} imports {reached}, which is not below it"
        )


def test_nobody_imports_testing() -> None:
    for path in modules():
        if unit_of(path) != "testing":
            assert all(not name.startswith("flatout.testing") for _, name in imports_of(path)), path


def test_base_needs_no_torch() -> None:
    for path in modules():
        if unit_of(path) == "base":
            assert all(name.split(".")[0] not in ("torch", "numpy") for _, name in imports_of(path)), path


def test_only_the_cli_reads_environment_variables_and_arguments() -> None:
    # a launcher's variables are how a process is told its part; another script's arguments and environment are set, not read
    launched = (SOURCE / "data" / "serving" / "ranks.py", SOURCE / "machine" / "joining.py", SOURCE / "doctor" / "script.py",
                SOURCE / "boost" / "protection" / "redirect.py")  # fmt: skip
    for path in modules():
        if unit_of(path) in ("cli", "testing") or path in launched:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert not (node.attr in ("environ", "getenv", "argv") and isinstance(node.value, ast.Name)), (
                    f"{path}:{node.lineno}"
                )


def test_no_import_cycles_between_modules() -> None:
    names = {".".join(("flatout", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in modules()}
    edges: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted = {target for _, target in imports_of(path)}
        edges[name] = {n for n in names if n != name and n in wanted}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join((*trail[trail.index(name) :], name))}"
        if name not in done:
            for other in edges[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in names:
        visit(name, ())
