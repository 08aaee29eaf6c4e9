"""Statements of a module that do nothing but set names: running them changes nothing else, so they count only where used."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterable

from flatout.pipelines.identity.normal import without_docstring
from flatout.pipelines.identity.uses import chain_of

_BUILTINS = {
    "int", "float", "str", "bool", "bytes", "complex", "len", "tuple", "list", "dict", "set", "frozenset", "sorted",
    "sum", "min", "max", "range", "abs", "round", "zip", "enumerate", "reversed", "object", "slice", "repr", "chr",
    "ord", "hash", "divmod", "pow", "property", "staticmethod", "classmethod", "super", "any", "all", "map", "filter",
    "bytearray", "isinstance", "issubclass",
}  # fmt: skip
_MODULES = {  # of the standard library, whose functions only make values
    "abc", "argparse", "base64", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator",
    "pathlib", "re", "statistics", "string", "struct", "textwrap", "threading", "types", "typing",
    "typing_extensions", "uuid", "zlib",
}  # fmt: skip
_CALLS = {
    "logging.getLogger", "os.path.join", "os.path.dirname", "os.path.abspath", "os.path.realpath", "os.path.basename",
    "os.getcwd", "os.path.exists", "os.environ.get", "os.getenv", "os.cpu_count", "importlib.resources.files",
    "numpy.array", "numpy.zeros", "numpy.ones", "numpy.arange", "numpy.linspace", "torch.tensor", "torch.device",
    "torch.Size", "torch.no_grad", "torch.inference_mode", "warnings.deprecated", "weakref.WeakKeyDictionary",
    "weakref.WeakValueDictionary", "random.Random", "numpy.random.default_rng", "torch.Generator",
}  # fmt: skip
_BASES = {"object", "dict", "list", "tuple", "set", "frozenset", "int", "float", "str", "bytes", "type"}
_PLAIN_MODULES = {
    "abc",
    "enum",
    "typing",
    "typing_extensions",
    "collections",
    "collections.abc",
    "dataclasses",
    "types",
    "contextlib",
}
_LIBRARY_BASES = ("torch.nn.", "torch.utils.data.", "torch.optim.", "torch.autograd.")

Naming = Callable[[ast.AST], str | None]


class Harmlessness:
    """`dotted` gives the full name of what an expression refers to outside of the project ("os.path.join"), or None.

    The others say of what the project itself defines: whether a decorator only returns something, whether a base does nothing
    with the classes that inherit from it, and whether a name is a value of which operators are Python's own.
    """

    def __init__(
        self,
        dotted: Naming,
        is_quiet_decorator: Callable[[ast.expr], bool],
        is_quiet_base: Callable[[ast.AST], bool],
        is_plain_value: Callable[[str], bool],
    ) -> None:
        self._dotted, self._is_quiet_decorator, self._is_quiet_base = dotted, is_quiet_decorator, is_quiet_base
        self._is_plain_value = is_plain_value

    def statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._function(node)
        if isinstance(node, ast.ClassDef):
            return self._class(node)
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
            return True
        if isinstance(node, ast.Assign):
            return all(_is_name(target) for target in node.targets) and self.expression(node.value)
        if isinstance(node, ast.AnnAssign):
            return _is_name(node.target) and (node.value is None or self.expression(node.value))
        if isinstance(node, ast.AugAssign):
            return isinstance(node.target, ast.Name) and self._operands([node.target, node.value])
        if isinstance(node, ast.If):
            return self.expression(node.test) and self._all(node.body) and self._all(node.orelse)
        if isinstance(node, ast.Try):
            bodies = [node.body, node.orelse, node.finalbody, *(handler.body for handler in node.handlers)]
            return all(self._all(body) for body in bodies)
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)

    def _all(self, body: list[ast.stmt]) -> bool:
        return all(map(self.statement, body))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        defaults = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None]
        return all(map(self.decorator, node.decorator_list)) and all(map(self.expression, defaults))

    def _class(self, node: ast.ClassDef) -> bool:
        return (
            all(map(self.decorator, node.decorator_list))
            and all(map(self.base, node.bases))
            and all(self._keyword(one) for one in node.keywords)
            and self._all(without_docstring(node.body))
        )

    def hands_on(self, node: ast.stmt) -> bool:
        """A decorator or a base class may keep what is defined."""
        if isinstance(node, ast.ClassDef):
            outside = [
                *map(self.decorator, node.decorator_list),
                *map(self.base, node.bases),
                *map(self._keyword, node.keywords),
            ]
            return not all(outside)
        return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not all(map(self.decorator, node.decorator_list))

    def _keyword(self, node: ast.keyword) -> bool:
        if node.arg == "metaclass":
            return self._dotted(node.value) == "abc.ABCMeta"
        return node.arg in ("total", "frozen") and self.expression(node.value)

    def decorator(self, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else node
        given = [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
        if not all(map(self.expression, given)):
            return False
        if isinstance(called, ast.Attribute) and called.attr in ("setter", "getter", "deleter"):
            return True
        name = self._dotted(called)
        if name is None:
            return self._is_quiet_decorator(node)
        return name in _BUILTINS or name in _CALLS or name.partition(".")[0] in _MODULES

    def base(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Subscript):  # Generic[T]
            node = node.value
        if isinstance(node, ast.Call):  # namedtuple("Point", "x y")
            return self.expression(node)
        name = self._dotted(node)
        if name is None:
            return self._is_quiet_base(node)
        return is_plain_base(name) or is_of_python(name) or name.startswith(_LIBRARY_BASES)

    def expression(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name = self._dotted(node.func)
            known = name is not None and (
                name in _BUILTINS or name in _CALLS or (name.partition(".")[0] in _MODULES and "." in name)
            )
            known = known and all(one.arg != "key" or isinstance(one.value, ast.Lambda) for one in node.keywords)
            method = isinstance(node.func, ast.Attribute) and name is None and self._of_a_text(node.func)
            return (known or method) and self._each([*node.args, *(one.value for one in node.keywords)])
        if isinstance(node, ast.Lambda):
            return self._each([one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None])
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Subscript):
            return self._operands([node.value]) and self.expression(node.slice)
        if isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp):
            return self._operands(ast.iter_child_nodes(node))
        return self._each(ast.iter_child_nodes(node))

    def _operands(self, nodes: Iterable[ast.AST]) -> bool:
        """An operator of a class of the project may do anything."""
        for node in nodes:
            root = chain_of(node)[0]
            if isinstance(root, ast.Name) and self._dotted(root) is None and not self._is_plain_value(root.id):
                return False
            if not self.expression(node):
                return False
        return True

    def _each(self, nodes: Iterable[ast.AST]) -> bool:
        return all(map(self.expression, nodes))

    def _of_a_text(self, node: ast.Attribute) -> bool:
        """`"a b".split()`, `Path(__file__).resolve()`, `HERE.joinpath("x")`: methods of what has been made harmlessly here."""
        if node.attr not in _METHODS:
            return False
        return self.expression(node.value)


_METHODS = {
    "split", "join", "strip", "lower", "upper", "format", "replace", "splitlines", "encode", "decode", "resolve",
    "absolute", "joinpath", "with_name", "with_suffix", "expanduser", "relative_to", "keys", "values", "items",
    "copy", "union", "intersection", "title", "startswith", "endswith", "count", "index", "removeprefix",
    "removesuffix", "exists", "is_file", "is_dir",
}  # fmt: skip


def is_plain_base(name: str) -> bool:
    """A base that calls methods by nothing but their special names: other methods run only where code calls them."""
    return name in _BASES or _is_exception(name) or name.rpartition(".")[0] in _PLAIN_MODULES or name in _PLAIN_MODULES


def _is_exception(name: str) -> bool:
    found = vars(builtins).get(name)
    return isinstance(found, type) and issubclass(found, BaseException)


def is_of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_name, target.elts))
    return isinstance(target, ast.Name)
