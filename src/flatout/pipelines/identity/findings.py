"""What of a project an entry reaches, by reading its code: the parts that count, and the files and variables that it takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from flatout.base.errors import UsageError
from flatout.pipelines.identity.dynamic import follow_dynamic
from flatout.pipelines.identity.hashing import digest_of, digest_of_bytes
from flatout.pipelines.identity.listing import ParsedFiles, ProjectFiles
from flatout.pipelines.identity.modules import Item
from flatout.pipelines.identity.normal import normal_digest
from flatout.pipelines.identity.ordering import order_of
from flatout.pipelines.identity.project import CodeFiles
from flatout.pipelines.identity.reach import Reach, ReachedModule
from flatout.pipelines.identity.reads import follow_reads
from flatout.pipelines.identity.recalled import CodeFindings
from flatout.pipelines.identity.uses import NameChain
from flatout.pipelines.identity.variables import follow_variables

_SHOWN = 48


def findings(
    project: ProjectFiles, trees: ParsedFiles, entry: Path | str, environment: Mapping[str, str]
) -> tuple[CodeFindings, bool]:
    """And whether code looks elsewhere, so that this can't be recalled. UsageError for an entry that does not exist."""
    files = CodeFiles(project, trees)
    while True:
        places, folders = len(files.places), len(files.folders)
        reach = Reach(files, environment, (follow_dynamic, follow_variables, follow_reads))
        _begin(reach, entry)
        reach.run()
        if folders == len(files.folders) and (places == len(files.places) or not files.has_moved()):
            break  # else code changes where it looks for modules or files: look again
    found = CodeFindings(
        list(_code_parts(reach)),
        sorted(reach.read_files),
        sorted(reach.variables),
        list(reach.fallbacks),
        sorted(reach.libraries),
    )
    return found, files.looks_elsewhere


def _begin(reach: Reach, entry: Path | str) -> None:
    module_name, colon, function = str(entry).partition(":")
    if isinstance(entry, str) and colon and not entry.endswith(".py"):
        if not reach.import_name(module_name):
            raise UsageError(
                f"expected 'module:function' of {reach.files.root}, got {entry!r}: there is no module {module_name}"
            )
        found = reach.files.find(module_name)
        assert found is not None
        module = reach.files.module(found)
        if not reach.targets(module, function.partition(".")[0], ()) and "__getattr__" not in module.by_name:
            raise UsageError(
                f"expected 'module:function' of {reach.files.root}, got {entry!r}: {module_name} has no {function}"
            )
        reach.use(module, NameChain(function.partition(".")[0], tuple(function.split(".")[1:])))
        return
    path = (reach.files.root / entry).resolve()
    if not path.is_file():
        raise UsageError(
            f"expected a script or 'module:function' of {reach.files.root}, got {str(entry)!r}: there is no such file"
        )
    reach.script(reach.files.script(path))


def _code_parts(reach: Reach) -> Iterator[tuple[str, str]]:
    for reached in reach.modules.values():
        module = reached.module
        if module.path in reach.files.damaged or (reach.raw_sources and module.path is not None):
            assert module.path is not None
            yield (f"{module.name}: the file", digest_of_bytes(module.path.read_bytes()))
        if reach.docstrings and module.docstring is not None:
            yield (f"{module.name}: docstring", digest_of(module.docstring))
        for index in sorted(reached.items):
            yield from _item_parts(reach, reached, module.items[index])
        yield (f"{module.name}: order of statements", digest_of(order_of(reach, reached)))


def _item_parts(reach: Reach, reached: ReachedModule, item: Item) -> Iterator[tuple[str, str]]:
    name = f"{reached.module.name}: {item_name(item)}"
    code = reached.classes.get(item.index)
    if code is None:
        yield (name, _digest(reach, reached, item.node, (reached.module, item) in reach.handed_on))
        return
    assert isinstance(item.node, ast.ClassDef)
    docstring = ast.get_docstring(item.node, clean=False) if reach.docstrings else None
    header = [normal_digest([one]) for one in code.header]
    members = [member for member in code.members if member.index in reached.members[item.index]]
    # the order of attributes is that of fields; that of methods is nothing
    fields = [
        "/".join(sorted(member.names))
        for member in members
        if not isinstance(member.node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    yield (name, digest_of([header, docstring, fields]))
    for member in members:
        shown = "/".join(sorted(member.names)) or _shown(member.node)
        yield (f"{name}.{shown}", _digest(reach, reached, member.node, code.is_open))


def _digest(reach: Reach, reached: ReachedModule, node: ast.stmt, is_handed_on: bool) -> str:
    """A function that is handed on may be asked for its annotations; else those that are never evaluated do not count."""
    is_plain = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list and not is_handed_on
    annotations = reach.annotations or not (is_plain and reached.module.lazy_annotations)
    return normal_digest([node], docstrings=reach.docstrings, annotations=annotations)


def item_name(item: Item) -> str:
    return "/".join(sorted(item.names)) if item.names and item.names != {"*"} else _shown(item.node)


def _shown(node: ast.stmt) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
