"""A class as its header and its members: methods count only where code can call them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from flatout.pipelines.identity.harmless import Harmlessness
from flatout.pipelines.identity.modules import CodeModule, Item
from flatout.pipelines.identity.normal import without_docstring
from flatout.pipelines.identity.scopes import names_in


@dataclass(frozen=True, eq=False)
class Member:
    """`always`: it counts whenever the class does."""

    index: int
    node: ast.stmt
    names: frozenset[str]
    always: bool


@dataclass(frozen=True, eq=False)
class ClassCode:
    module: CodeModule
    item: Item
    header: tuple[ast.AST, ...]
    members: tuple[Member, ...]
    is_open: bool


def class_code(
    module: CodeModule, item: Item, harmless: Harmlessness, has_open_base: bool, attributes_are_read: bool
) -> ClassCode:
    """`has_open_base`: it inherits from, or is changed by, what calls members by names that are not known here."""
    node = item.node
    assert isinstance(node, ast.ClassDef)
    members = []
    for index, one in enumerate(without_docstring(node.body)):
        names = frozenset(names_in([one]).kinds)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            always = has_open_base or _is_called_by_others(one.name) or not harmless.statement(one)
        else:
            always = (
                attributes_are_read or has_open_base or any(map(_is_special, names)) or not names or not harmless.statement(one)
            )
        members.append(Member(index, one, names, always))
    return ClassCode(
        module, item, (*node.decorator_list, *node.bases, *node.keywords), tuple(members), has_open_base or attributes_are_read
    )


# methods that libraries call on objects of any class: files, models, iterators, handlers
_OF_PROTOCOLS = {
    "read", "write", "flush", "close", "readline", "readlines", "writelines", "seek", "tell", "fileno", "isatty",
    "truncate", "writable", "readable", "seekable", "getvalue", "fit", "predict", "transform", "fit_transform",
    "predict_proba", "inverse_transform", "partial_fit", "score", "get_params", "set_params", "decision_function",
    "forward", "backward", "step", "zero_grad", "state_dict", "load_state_dict", "parameters", "train", "eval",
    "collate", "sample", "run", "start", "stop", "setup", "teardown", "emit", "handle", "format", "filter", "update",
    "reset", "send", "throw", "next", "get", "put", "pop", "items", "keys", "values", "encode", "decode", "default",
    "convert", "process", "execute", "connect", "cursor", "commit", "rollback", "acquire", "release", "notify",
    "callback",
}  # fmt: skip
_OF_PREFIXES = ("on_", "visit_", "do_", "handle_", "test", "generic_", "leave_", "before_", "after_")


def _is_called_by_others(name: str) -> bool:
    return _is_special(name) or name in _OF_PROTOCOLS or name.startswith(_OF_PREFIXES)


def _is_special(name: str) -> bool:
    """`__call__`, and `_missing_` of an enumeration."""
    return name.startswith("_") and name.endswith("_") and len(name) > 2
