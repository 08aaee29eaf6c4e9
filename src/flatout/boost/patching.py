"""Writes remedies into a script: edits of calls and inserted lines, as a unified diff."""

from __future__ import annotations

import ast
import difflib
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """One of: `arguments` added to the call of `function` on `line`; a `statement` inserted before the one on `line` (0: at the
    top of the file); a `decorator` for the function around `line`, unless it contains one of the lines `not_around`.

    In a statement, {model} stands for the name that is called on `model_line`.
    """

    file: str
    line: int
    function: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    statement: str = ""
    model_line: int = 0
    decorator: str = ""
    not_around: tuple[int, ...] = ()


def placed(where: str) -> tuple[str, int] | None:
    """ "train.py:41" as file and line."""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else None


Changes = Mapping[Path, tuple[str, str]]  # text before and after, by file


def patch(edits: Iterable[Edit]) -> tuple[str, list[Edit]]:
    """A unified diff of all files, and the edits that could not be made."""
    changes, left = edited(edits)
    return difference(changes), left


def difference(changes: Changes) -> str:
    root = _root(changes)
    return "".join(_difference(path.relative_to(root).as_posix(), *texts) for path, texts in changes.items())


def edited(edits: Iterable[Edit]) -> tuple[Changes, list[Edit]]:
    """The files that change, and the edits that could not be made."""
    by_file: dict[Path, list[Edit]] = defaultdict(list)
    for edit in edits:
        by_file[Path(edit.file).resolve()].append(edit)
    changed, left = dict[Path, tuple[str, str]](), []
    for path, wanted in sorted(by_file.items()):
        try:
            before = path.read_bytes().decode()  # keeps line endings
            after, undone = _edited(before, wanted)
        except (OSError, SyntaxError, UnicodeError):
            left += wanted
            continue
        left += undone
        if after != before:
            changed[path] = before, after
    return changed, left


def command_for(text: str, file: Path) -> str:
    """The command that applies the patch in that file."""
    named = re.findall(r"^\+\+\+ b/([^\t\n]+)", text, re.MULTILINE)
    quoted = shlex.quote(str(file))
    return f"git apply {quoted}" if all(Path(name).exists() for name in named) else f"patch -p1 -d / < {quoted}"


def _root(paths: Iterable[Path]) -> Path:
    """Where to apply the patch: the current folder, or / if a file is elsewhere."""
    here = Path.cwd().resolve()
    return here if all(path.is_relative_to(here) for path in paths) else Path(here.anchor)


def _difference(name: str, before: str, after: str) -> str:
    end = "\t" if " " in name else ""  # ends the name: `patch` would stop reading at a space
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}{end}", f"b/{name}{end}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(source: str) -> list[str]:
    """Lines as Python and git count them; `splitlines` also splits at other characters."""
    return re.findall(r"[^\n]*\n|[^\n]+", source)


def _edited(source: str, edits: list[Edit]) -> tuple[str, list[Edit]]:
    lines = _lines(source)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    tree = ast.parse(source)
    left = []
    changes: list[tuple[int, int, str]] = []  # line, column, inserted text; from the end of the file to its start
    for edit in edits:
        if edit.decorator:
            change = _decorated(tree, edit)
        else:
            change = _inserted(tree, lines, edit) if edit.statement else _with_arguments(tree, edit)
        left += [edit] if change is None else []
        changes += [] if change is None else [change]
    joined: dict[tuple[int, int], list[str]] = defaultdict(list)
    for line, column, text in changes:
        if text not in joined[line, column]:
            joined[line, column].append(text)
    for (line, column), texts in sorted(joined.items(), reverse=True):
        old = lines[line - 1].encode()  # ast counts columns in bytes
        new = "".join(texts).replace("\n", end).encode()
        lines[line - 1] = (old[:column] + new + old[column:]).decode()
    after = "".join(lines)
    ast.parse(after)
    return after, left


def _with_arguments(tree: ast.Module, edit: Edit) -> tuple[int, int, str] | None:
    for call in _calls(tree):
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
        )
        if name != edit.function or not call.lineno <= edit.line <= (call.end_lineno or call.lineno):
            continue
        if any(keyword.arg is None for keyword in call.keywords):
            return None  # **options may already contain the arguments
        given = {keyword.arg for keyword in call.keywords}
        added = [f"{key}={value}" for key, value in edit.arguments if key not in given]
        if len(added) < len(edit.arguments) or call.end_lineno is None or call.end_col_offset is None:
            return None
        ends = max(
            [*call.args, *(keyword.value for keyword in call.keywords)],
            key=lambda node: (node.end_lineno, node.end_col_offset),
            default=None,
        )  # type: ignore[arg-type, return-value]
        if ends is None:
            return call.end_lineno, call.end_col_offset - 1, ", ".join(added)
        return int(ends.end_lineno or 0), int(ends.end_col_offset or 0), ", " + ", ".join(added)
    return None


def _inserted(tree: ast.Module, lines: list[str], edit: Edit) -> tuple[int, int, str] | None:
    statements = _statements_at(tree, edit.line) if edit.line else [_first_statement(tree)]
    statement = statements[0] if statements else None
    if statement is None:
        return None
    text = edit.statement
    if "torch." in text and not _imports_torch(tree):
        return None
    if "{model}" in text:
        called = _called_at(tree, edit.model_line)
        if called is None or not _same_scope(tree, edit.line, edit.model_line):
            return None
        text = text.replace("{model}", called)
        after = [at for at, one in enumerate(statements, 1) if one is not None and called in _assigned(one)]
        if after and after[-1] == len(statements):  # the model is assigned last on this line: no statement follows it
            return None
        statement = statements[after[-1]] if after else statement
        assert statement is not None
    first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
    if not edit.line:
        beside = [one for one in tree.body if one.lineno == statement.lineno and one.col_offset < statement.col_offset]
        may_follow = all(isinstance(one, ast.Import) for one in beside)  # a docstring or a __future__ import must stay first
        return (first, 0, f"{text}\n") if may_follow else None
    if statement is not statements[0] or _has_code_before(statement, lines):
        return statement.lineno, statement.col_offset, f"{text}; "
    indent = lines[statement.lineno - 1].encode()[: statement.col_offset].decode()
    return first, 0, f"{indent}{text}\n"


def _has_code_before(statement: ast.stmt, lines: list[str]) -> bool:
    """Is there code before it on its line, as in `if ready: train()`?"""
    return bool(lines[statement.lineno - 1].encode()[: statement.col_offset].strip())


def _decorated(tree: ast.Module, edit: Edit) -> tuple[int, int, str] | None:
    function = _function_around(tree, edit.line)
    inside = {found.name for line in edit.not_around if (found := _function_around(tree, line)) is not None}
    if function is None or function.name in inside or inside & _called_from(tree, function):
        return None
    first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
    return first, 0, f"{' ' * function.col_offset}{edit.decorator}\n"


def _called_from(tree: ast.Module, function: ast.FunctionDef) -> set[str]:
    """Names that it calls, directly or through functions of the same file."""
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: set[str] = set()
    waiting = [function]
    while waiting:
        names = {
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            for call in ast.walk(waiting.pop())
            if isinstance(call, ast.Call)
        }
        waiting += [bodies[name] for name in names - found if name in bodies]
        found |= names
    return found


def _function_around(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    """The innermost function around a line."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    around = [node for node in functions if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(around, key=lambda node: node.lineno, default=None)


def _first_statement(tree: ast.Module) -> ast.stmt | None:
    """The first statement that may import torch, after the docstring, standard library imports and environment variables."""
    for at, statement in enumerate(tree.body):
        is_docstring = at == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_docstring and not _is_of_python(statement) and not _sets_the_environment(statement):
            return statement
    return None


def _is_of_python(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import):
        return all(alias.name.partition(".")[0] in sys.stdlib_module_names for alias in statement.names)
    return isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] in sys.stdlib_module_names


def _sets_the_environment(statement: ast.stmt) -> bool:
    names = {getattr(node, "attr", None) or getattr(node, "id", None) for node in ast.walk(statement)}
    return isinstance(statement, ast.Assign | ast.Expr) and bool(names & {"environ", "putenv"})


def _imports_torch(tree: ast.Module) -> bool:
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    names = [alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names]
    return "torch" in names


def _statements_at(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The innermost statement on a line, or all of them in order if the line holds several."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    latest = max((node.lineno for node in around), default=0)
    last = [node for node in around if node.lineno == latest]
    inner = [node for node in last if not any(other is not node and _holds(node, other) for other in last)]
    return sorted(inner, key=lambda node: node.col_offset)


def _holds(outer: ast.stmt, inner: ast.stmt) -> bool:
    return any(node is inner for node in ast.walk(outer))


def _called_at(tree: ast.Module, line: int) -> str | None:
    """The name of the model in `model(x)`; of several calls on the line, the innermost that is not a library's."""
    names = [
        call.func.id
        for call in _calls(tree)
        if call.lineno <= line <= (call.end_lineno or call.lineno) and isinstance(call.func, ast.Name)
    ]
    known = [name for name in names if name in _assigned(tree) and not hasattr(__builtins__, name)]
    return known[-1] if known else None


def _assigned(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            found |= {inner.id for target in node.targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def _same_scope(tree: ast.Module, first: int, second: int) -> bool:
    """Does a name assigned around the first line mean the same on the second? Both in one function, or both outside."""

    def scope(line: int) -> ast.AST:
        inner: ast.AST = tree
        for node in ast.walk(tree):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.lineno <= line <= (node.end_lineno or 0):  # type: ignore[attr-defined]
                inner = node
        return inner

    here, there = scope(first), scope(second)
    if here is there:
        return True
    name = _called_at(tree, second)
    parameters = {arg.arg for arg in ast.walk(there) if isinstance(arg, ast.arg)} if there is not tree else set()
    used_here = {node.id for node in ast.walk(here) if isinstance(node, ast.Name)} if here is not tree else _assigned(tree)
    return name in used_here and (name in parameters or here is tree)


def _calls(tree: ast.Module) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
