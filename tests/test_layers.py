"""A module imports only from lower layers, and siblings never import each other. Imports inside functions count."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "flatout"

LAYERS = {
    "base": 0,
    "measure": 1,
    "machine": 2,
    "world": 3,
    "data": 4,
    "models": 4,
    "objectives": 4,
    "store": 4,
    "engine": 5,
    "doctor": 5,  # findings on any script
    "recipe": 6,
    "plan": 7,
    "runs": 8,
    "packaging": 9,
    "boost": 10,  # tries remedies on any script
    "explore": 10,
    "serving": 10,  # knows packages, not runs
    "shrinking": 10,  # knows packages, and the run behind one
    "tracking": 10,  # sends what a run logs elsewhere
    "tuning": 10,  # what to try, and the trials of it
    "loadtest": 10,  # asks any server
    "pipelines": 11,  # from raw data to a checked model
    "fleet": 11,  # starts `python -m flatout` elsewhere
    "drill": 11,
    "reporting": 11,  # pages about runs
    "notebook": 11,  # fo.run, which drafts what is missing and speaks
    "testing": 12,
    "cli": 13,
}
# Inside of data, the lowest first. What is not listed stands on top of all: data as a recipe writes it.
DATA_ORDER = (
    ("files",),
    ("order",),
    ("offers", "source", "checks", "decoding"),
    ("augment",),
    ("transforms", "normalize", "attention_mask", "option_checks"),
    ("fitted",),
    ("workers",),
    ("cache",),
    ("data",),
    ("sources",),
    ("kept", "own_fit", "earlier", "given", "others"),
    ("feeds",),
)
FREE = {"__init__", "__main__"}  # the package's front door hands out names; it holds no code


@dataclass(frozen=True)
class Import:
    """`name` is the module that is reached, as exactly as the statement says it."""

    line: int
    name: str
    for_types: bool  # below `if TYPE_CHECKING`: never executed


def unit_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_name(path: Path, source: Path = SOURCE) -> str:
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules(source: Path = SOURCE) -> tuple[Path, ...]:
    return tuple(sorted(source.rglob("*.py")))


@cache
def known(source: Path = SOURCE) -> frozenset[str]:
    return frozenset(module_name(path, source) for path in modules(source))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path, source: Path = SOURCE) -> tuple[Import, ...]:
    """Every import of a module: at its top, inside of functions and classes, in any branch."""
    return tuple(_imports_below(tree_of(path), path, source, for_types=False))


def _imports_below(node: ast.AST, path: Path, source: Path, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(child.lineno, alias.name, for_types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path}:{child.lineno}: relative imports hide which layer they reach"
            package = child.module or ""
            for alias in child.names:
                # `from package import module` reaches the module; `from module import name` the module that has the name
                inner = f"{package}.{alias.name}"
                yield Import(child.lineno, inner if inner in known(source) else package, for_types)
        elif isinstance(child, ast.If) and ast.unparse(child.test).split(".")[-1] == "TYPE_CHECKING":
            for statement in child.body:
                yield from _imports_below(ast.Module([statement], []), path, source, for_types=True)
            yield from _imports_below(ast.Module(child.orelse, []), path, source, for_types)
        else:
            yield from _imports_below(child, path, source, for_types)


def cycle_among(source: Path = SOURCE) -> list[str] | None:
    """The modules of an import cycle in order, if there is one.

    Imports for types alone count for layers, since they say what a module has to know, and for cycles as well, except those
    of a package's front door (`__init__`): it names what it hands out for type checkers, and loads it when it is asked for.
    """
    edges: dict[str, list[str]] = {}
    for path in modules(source):
        is_door = path.name == "__init__.py"
        reached = {found.name for found in imports_of(path, source) if not (is_door and found.for_types)}
        edges[module_name(path, source)] = sorted(reached & known(source) - {module_name(path, source)})
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as found:
        return list(found.args[1])
    return None


def test_every_module_has_a_layer() -> None:
    assert {unit_of(path) for path in modules()} - FREE <= set(LAYERS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downward(path: Path) -> None:
    unit = unit_of(path)
    if unit in FREE:
        return
    for found in imports_of(path):
        parts = found.name.split(".")
        if parts[0] != "flatout" or len(parts) == 1:
            continue
        reached = parts[1]
        assert reached == unit or LAYERS[reached] < LAYERS[unit], (
            f"{path}:{found.line}: {unit} imports {reached}, which is not below it"
        )


def place_in_data(name: str) -> int:
    """Of a module below `flatout.data`, by its folder or its own name."""
    parts = name.split(".")[2:]
    return next((place for place, names in enumerate(DATA_ORDER) if parts and parts[0] in names), len(DATA_ORDER))


@pytest.mark.parametrize("path", [path for path in modules() if unit_of(path) == "data"], ids=lambda path: path.stem)
def test_imports_inside_of_data_point_downward(path: Path) -> None:
    own = place_in_data(module_name(path))
    for found in imports_of(path):
        if found.name.startswith("flatout.data."):
            reached = place_in_data(found.name)
            assert reached <= own, f"{path}:{found.line}: {found.name} is not below it"


def test_public_classes_have_a_name_of_their_own() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module_name(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_no_folder_hides_a_function_of_the_package() -> None:
    """`import flatout.run.x` would put a module where `fo.run` is."""
    import flatout

    offered = {name for name in flatout.__all__ if not isinstance(getattr(flatout, name), ModuleType)}
    assert not offered & {unit_of(path) for path in modules()}


def test_nobody_imports_testing() -> None:
    for path in modules():
        if unit_of(path) != "testing":
            assert all(not found.name.startswith("flatout.testing") for found in imports_of(path)), path


def test_base_needs_no_torch() -> None:
    for path in modules():
        if unit_of(path) == "base":
            assert all(found.name.split(".")[0] not in ("torch", "numpy") for found in imports_of(path)), path


def test_only_the_cli_reads_environment_variables_and_arguments() -> None:
    # a launcher's variables are how a process is told its part; another script's arguments and environment are set, not read
    launched = (SOURCE / "data" / "feeds" / "ranks.py", SOURCE / "world" / "joining.py", SOURCE / "doctor" / "script.py",
                SOURCE / "machine" / "threads.py",  # what torch itself has read
                SOURCE / "base" / "keeper.py",  # a program of its own
                SOURCE / "boost" / "protection" / "redirect.py")  # fmt: skip
    for path in modules():
        if unit_of(path) in ("cli", "testing") or path in launched:
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute):
                assert not (node.attr in ("environ", "getenv", "argv") and isinstance(node.value, ast.Name)), (
                    f"{path}:{node.lineno}"
                )


def test_no_import_cycles_between_modules() -> None:
    found = cycle_among()
    assert found is None, f"import cycle: {' -> '.join(found)}"


@pytest.mark.parametrize(
    "statement",
    [
        "import house.c",
        "import house.c as c",
        "from house import c",
        "from house import d, c as e",
        "from house.c import VALUE",
        "def later():\n    from house import c",
        "class Part:\n    def make(self):\n        import house.c",
        "try:\n    from house import c\nexcept ImportError:\n    c = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house import c",
        "import typing\nif typing.TYPE_CHECKING:\n    from house.c import VALUE",
    ],
)
def test_a_cycle_is_found_in_every_form_of_import(statement: str, tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    for name, text in (("__init__", ""), ("d", ""), ("a", statement), ("b", "from house import a"), ("c", "import house.b")):
        (house / f"{name}.py").write_text(text)
    found = cycle_among(house)
    assert found is not None and set(found) == {"house.a", "house.b", "house.c"}
    (house / "a.py").write_text("import json")
    assert _cycle_now(house) is None


def test_a_front_door_that_names_its_rooms_for_types_is_no_cycle(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    door = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.a import VALUE\nVERSION = 1\n"
    (house / "__init__.py").write_text(door)
    (house / "a.py").write_text("from house import VERSION\nVALUE = VERSION")
    assert cycle_among(house) is None
    (house / "__init__.py").write_text("from house.a import VALUE\nVERSION = 1\n")
    assert _cycle_now(house) is not None


def _cycle_now(source: Path) -> list[str] | None:
    """After a file has changed."""
    for kept in (tree_of, imports_of):
        kept.cache_clear()
    return cycle_among(source)


# what nothing in the package uses is for tests or benchmarks alone, or for nobody
FOR_OTHERS = {
    "inside_sync_point": "the loop's tests count waits for the device by it",
    "rows_on_disk": "the whole of a writer in one call",
}


def test_every_public_function_and_class_is_used_by_the_package() -> None:
    used: Counter[str] = Counter()
    unused: dict[str, int] = {}  # how often such a one names itself
    for path in modules():
        for node in tree_of(path).body:
            names = _names_in(node)
            used.update(names)
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_") or node.name in FOR_OTHERS:
                continue
            registered = bool(node.decorator_list) and isinstance(node, ast.FunctionDef)  # a command, an objective
            if not registered and unit_of(path) != "testing":  # which is for users
                unused[node.name] = unused.get(node.name, 0) + names[node.name]
    assert [name for name, by_itself in unused.items() if used[name] == by_itself] == []


def _names_in(statement: ast.stmt) -> Counter[str]:
    """Names that code uses. Words of a string count: front doors find what they hand out by its name."""
    names: Counter[str] = Counter()
    for node in ast.walk(statement):
        kind = type(node)
        if kind is ast.Name:
            names[node.id] += 1  # type: ignore[attr-defined]
        elif kind is ast.Attribute:
            names[node.attr] += 1  # type: ignore[attr-defined]
        elif kind is ast.Constant and isinstance(node.value, str) and len(node.value) < 100:  # type: ignore[attr-defined]
            names.update(re.findall(r"\w+", node.value))  # type: ignore[attr-defined]
    return names
