"""The identity of the code behind an entry: everything of the project that it can reach and that can change what it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.base.errors import UsageError
from flatout.pipelines.identity.dynamic import follow_dynamic
from flatout.pipelines.identity.hashing import digest_of, digest_of_bytes, digests_of_files
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.identity.modules import Item
from flatout.pipelines.identity.normal import normal_digest
from flatout.pipelines.identity.ordering import order_of
from flatout.pipelines.identity.project import CodeFiles
from flatout.pipelines.identity.reach import Reach, ReachedModule
from flatout.pipelines.identity.reads import follow_reads
from flatout.pipelines.identity.recalled import CodeFindings, fingerprint, keep, recall
from flatout.pipelines.identity.uses import NameChain
from flatout.pipelines.identity.variables import follow_variables

_SHOWN = 48


@dataclass(frozen=True)
class CodePart:
    """A function, a class, a method, a statement, a file or an environment variable."""

    name: str
    digest: str


@dataclass(frozen=True)
class CodeIdentity:
    """`fallbacks`: where it can't be known what code reaches, so that more counts than is needed.

    `libraries`: what it imports from outside of the project. The digest has their names, `package_versions` their versions.
    """

    digest: str
    parts: tuple[CodePart, ...]
    fallbacks: tuple[str, ...]
    libraries: tuple[str, ...]


def code_identity(
    entry: Path | str,
    root: Path,
    *,
    environment: Mapping[str, str],
    outputs: Sequence[Path] = (),
    hashes: InputHashes | None = None,
) -> CodeIdentity:
    """`entry`: a script's path or "module:function", below `root`, in which it runs.

    `environment`: what the code will find in it. `outputs`: files and folders that stages write, which never count as read.
    The code is only read: nothing of it is imported, and nothing runs.
    """
    files = CodeFiles(root, outputs)
    known = None if hashes is None else fingerprint(files, str(entry), environment)
    found = None if hashes is None or known is None else recall(hashes.folder, files, str(entry), known)
    if found is None:
        try:
            found = _findings(files, entry, environment)
        except RecursionError:
            return _whole_identity(files, hashes)
        if hashes is not None and known is not None and not files.looks_elsewhere:
            keep(hashes.folder, files, str(entry), known, found)
    parts = {*(CodePart(*one) for one in found.parts), *_other_parts(files, found, environment, hashes)}
    return _identity(parts, tuple(found.fallbacks), tuple(found.libraries))


def _findings(files: CodeFiles, entry: Path | str, environment: Mapping[str, str]) -> CodeFindings:
    while True:
        places, folders = len(files.places), len(files.folders)
        reach = Reach(files, environment, (follow_dynamic, follow_variables, follow_reads))
        _begin(reach, entry)
        reach.run()
        if folders == len(files.folders) and (places == len(files.places) or not files.has_moved()):
            break  # else code changes where it looks for modules or files: look again
    return CodeFindings(
        [(part.name, part.digest) for part in _code_parts(reach)],
        sorted(reach.read_files),
        sorted(reach.variables),
        list(reach.fallbacks),
        sorted(reach.libraries),
    )


def _whole_identity(files: CodeFiles, hashes: InputHashes | None) -> CodeIdentity:
    """Of code that is nested too deeply to be followed."""
    parts = {CodePart(f"file {name}", _file_digest(path, hashes)) for name, path in files.names().items()}
    return _identity(parts, ("some code is nested too deeply to be followed: all files of the project count",), ())


def _identity(parts: set[CodePart], fallbacks: tuple[str, ...], libraries: tuple[str, ...]) -> CodeIdentity:
    ordered = tuple(sorted(parts, key=lambda part: (part.name, part.digest)))
    return CodeIdentity(digest_of([[part.name, part.digest] for part in ordered]), ordered, fallbacks, libraries)


def _file_digest(path: Path, hashes: InputHashes | None) -> str:
    return digests_of_files({"": str(path)})[""][1] if hashes is None else hashes.of(path).digest


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


def _code_parts(reach: Reach) -> Iterator[CodePart]:
    for reached in reach.modules.values():
        module = reached.module
        if module.path in reach.files.damaged or (reach.raw_sources and module.path is not None):
            assert module.path is not None
            yield CodePart(f"{module.name}: the file", digest_of_bytes(module.path.read_bytes()))
        if reach.docstrings and module.docstring is not None:
            yield CodePart(f"{module.name}: docstring", digest_of(module.docstring))
        for index in sorted(reached.items):
            yield from _item_parts(reach, reached, module.items[index])
        yield CodePart(f"{module.name}: order of statements", digest_of(order_of(reach, reached)))


def _item_parts(reach: Reach, reached: ReachedModule, item: Item) -> Iterator[CodePart]:
    name = f"{reached.module.name}: {item_name(item)}"
    code = reached.classes.get(item.index)
    if code is None:
        yield CodePart(name, _digest(reach, reached, item.node, (reached.module, item) in reach.handed_on))
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
    yield CodePart(name, digest_of([header, docstring, fields]))
    for member in members:
        shown = "/".join(sorted(member.names)) or _shown(member.node)
        yield CodePart(f"{name}.{shown}", _digest(reach, reached, member.node, code.is_open))


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


def _other_parts(
    files: CodeFiles, found: CodeFindings, environment: Mapping[str, str], hashes: InputHashes | None
) -> Iterator[CodePart]:
    for name in found.read_files:
        yield CodePart(f"file {name}", _file_digest(files.root / name, hashes))
    for name in found.variables:
        yield CodePart(f"environment variable {name}", digest_of(environment.get(name)))
    for library in found.libraries:
        yield CodePart(f"library {library}", "")
