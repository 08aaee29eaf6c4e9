"""What of a project an entry reaches, by reading its code: the parts that count, and the files and variables that it takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from flatout.base.errors import UsageError
from flatout.pipelines.identity.annotations import are_blind, is_builtin_type, is_plain_type, leaves_types
from flatout.pipelines.identity.dynamic import follow_dynamic
from flatout.pipelines.identity.hashing import digest_of, digest_of_bytes
from flatout.pipelines.identity.import_traces import ImportTraces
from flatout.pipelines.identity.listing import ParsedFiles, ProjectFiles
from flatout.pipelines.identity.modules import CodeModule, Item
from flatout.pipelines.identity.normal import Annotations, NormalDigest, normal_digest
from flatout.pipelines.identity.ordering import order_of
from flatout.pipelines.identity.own_names import OwnNames, has_own_parameters, own_names
from flatout.pipelines.identity.project import CodeFiles
from flatout.pipelines.identity.reach import Reach, ReachedModule
from flatout.pipelines.identity.reads import follow_reads
from flatout.pipelines.identity.recalled import CodeFindings, FoundPart
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


def _code_parts(reach: Reach) -> Iterator[FoundPart]:
    names, imports = own_names(reach), ImportTraces(reach)
    for reached in reach.modules.values():
        module = reached.module
        if module.path in reach.files.damaged or (reach.raw_sources and module.path is not None):
            assert module.path is not None
            yield _part(f"{module.name}: the file", digest_of_bytes(module.path.read_bytes()))
        if reach.docstrings and module.docstring is not None:
            yield _part(f"{module.name}: docstring", digest_of(module.docstring))
        for index in sorted(reached.items):
            yield from _item_parts(reach, reached, module.items[index], names)
        order = order_of(imports, reached, names.get(module, {}))
        yield _part(f"{module.name}: order of statements", digest_of(order))


def _part(name: str, digest: str) -> FoundPart:
    return name, digest, name, digest


def _item_parts(reach: Reach, reached: ReachedModule, item: Item, names: OwnNames) -> Iterator[FoundPart]:
    instead = names.get(reached.module, {})
    name = f"{reached.module.name}: {item_name(item)}"
    code = reached.classes.get(item.index)
    if code is None:
        is_handed_on = (reached.module, item) in reach.handed_on
        parameters = has_own_parameters(reach, reached.module, item, names)
        digest = _digest(reach, reached, item.node, is_handed_on, instead, own_parameters=parameters)
        own = "/".join(instead.get(one, one) for one in sorted(item.names - {"*"})) or f"statement {digest.digest}"
        yield name, digest.as_named, f"{reached.module.name}: {own}", digest.digest
        return
    assert isinstance(item.node, ast.ClassDef)
    docstring = ast.get_docstring(item.node, clean=False) if reach.docstrings else None
    header = [normal_digest([one], names=instead) for one in code.header]
    members = [member for member in code.members if member.index in reached.members[item.index]]
    # the order of attributes is that of fields; that of methods is nothing
    fields = [
        "/".join(sorted(member.names))
        for member in members
        if not isinstance(member.node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    as_named = digest_of([[one.as_named for one in header], docstring, fields])
    yield name, as_named, name, digest_of([[one.digest for one in header], docstring, fields])
    around = {one for member in code.members for one in member.names}
    has_plain_fields = _has_plain_fields(reach, reached.module, item.node) and leaves_types(around)
    for member in members:
        shown = "/".join(sorted(member.names)) or _shown(member.node)
        node = _of_any_type(member.node) if has_plain_fields else member.node
        found = _digest(reach, reached, node, code.is_open, instead, around)
        own_name = "/".join(sorted(member.names)) or f"statement {found.digest}"
        yield f"{name}.{shown}", found.as_named, f"{name}.{own_name}", found.digest


def _digest(
    reach: Reach,
    reached: ReachedModule,
    node: ast.stmt,
    is_handed_on: bool,
    names: Mapping[str, str],
    around: Set[str] = frozenset(),
    own_parameters: bool = False,
) -> NormalDigest:
    """A function that is handed on may be asked for its annotations; else those that are never evaluated do not count, nor do
    those that can't fail. `around`: names of the class."""
    annotations = Annotations.ALL
    if not is_handed_on and not reach.annotations:
        evaluated = Annotations.THAT_RUN if _leaves_types(reached.module) and leaves_types(around) else Annotations.ALL
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
            annotations = Annotations.NONE if reached.module.lazy_annotations else evaluated
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            is_evaluated_well = evaluated is Annotations.THAT_RUN and is_plain_type(node.annotation)
            node = ast.Assign([node.target], node.value) if is_evaluated_well else node
    return normal_digest(
        [node], docstrings=reach.docstrings, annotations=annotations, names=names, own_parameters=own_parameters
    )


def _leaves_types(module: CodeModule) -> bool:
    return leaves_types(set(module.by_name)) and not module.stars


def _has_plain_fields(reach: Reach, module: CodeModule, node: ast.ClassDef) -> bool:
    """Whether nothing but `dataclass` itself asks for the types of its fields, which looks for ClassVar and InitVar alone."""
    called = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    is_plain = (
        [reach.dotted(module, one) for one in called] == ["dataclasses.dataclass"] and not node.bases and not node.keywords
    )
    asks = reach.annotations or reach.docstrings or reach.is_mentioned("type") or reach.is_mentioned("__dataclass_fields__")
    return is_plain and not asks and are_blind(reach.libraries) and _leaves_types(module)


def _of_any_type(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.AnnAssign) and is_builtin_type(node.annotation):
        return ast.AnnAssign(node.target, ast.Constant("a type"), node.value, node.simple)
    return node


def item_name(item: Item) -> str:
    return "/".join(sorted(item.names)) if item.names and item.names != {"*"} else _shown(item.node)


def _shown(node: ast.stmt) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
