"""The part of YAML that recipes use: keys, lists, text, numbers, true and false. Anything else is an error with its line.

Plain PyYAML reads `1e6` as text, `1:30` as 90, `010` as 8, a date as an object, keeps the last of two equal keys, and raises a
traceback for some values. Here keys are always text, numbers are decimal, and every mistake is one line in `problems`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from flatout.base.errors import UsageError

MOST_CHARACTERS, MOST_VALUES, DEEPEST, MOST_DIGITS = 1 << 20, 100_000, 64, 400
_TAG = "tag:yaml.org,2002:"
_TRUTHS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_WHOLE = re.compile(rf"[-+]?{_DIGITS}|[-+]?0x[0-9a-fA-F]+|[-+]?0o[0-7]+|[-+]?0b[01]+")
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_USUAL_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20}(?:e-[0-9]{1,2})?|e-[0-9]{1,2})")
_TRUTH = re.compile(r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF")
_NULL = re.compile(r"~|null|Null|NULL|")
_SURROGATE = re.compile("[\ud800-\udfff\0]")


class _Loader(Reader, Scanner, Parser, Composer, Resolver):
    """Parses text to nodes; `_Values` converts nodes to values."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012, PyYAML requires it

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        Resolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"values are nested more than {DEEPEST} levels deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


# PyYAML matches a resolver's pattern only at the start of a value, so each pattern must also match its end.
for _kind, _pattern, _first in (
    ("bool", _TRUTH, "yYnNtTfFoO"),
    ("null", _NULL, ["~", "n", "N", ""]),
    ("int", _WHOLE, "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("merge", re.compile("<<"), "<"),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_pattern.pattern})\Z"), list(_first))  # type: ignore[no-untyped-call]


def read_yaml(text: str) -> tuple[Any, list[str]]:
    """The value and a list of problems; a part with a problem is None. Raises UsageError if the text is not YAML at all."""
    if _USUAL_NUMBER.fullmatch(text):  # which a search writes by the thousand
        return float(text), []
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"the recipe has {len(text):,} characters, at most {MOST_CHARACTERS:,} are allowed")
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(" ".join(filter(None, (error.context, error.problem))) + _at(mark)) from error
    except yaml.YAMLError as error:
        raise UsageError(" ".join(str(error).split())) from error
    if node is None:
        return None, []
    _check_size(node)
    values = _Values()
    return values.made(node), values.problems


class _Values:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def made(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.made(inner) for inner in node.value]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, kind)
        return self._wrong(node, f"the tag {_tag(node)} is not allowed here; remove it")

    def _scalar(self, node: yaml.ScalarNode, kind: str) -> Any:
        text: str = node.value
        if kind in ("str", "value", "merge"):
            return self._text(node)
        if kind == "null" and _NULL.fullmatch(text):
            return None
        if kind == "bool" and text.lower() in _TRUTHS:
            return _TRUTHS[text.lower()]
        if kind == "int" and _WHOLE.fullmatch(text):
            if len(text) > MOST_DIGITS:
                return self._wrong(node, f"a number with {len(text):,} digits is too long")
            based = text.lstrip("-+")[:2].lower() in ("0x", "0o", "0b")
            return int(text, 0 if based else 10)
        if kind == "float" and _FLOAT.fullmatch(text):
            return float(text.replace("_", "") if "n" not in text.lower() else text.replace(".", ""))  # float reads inf and nan
        if kind in ("null", "bool", "int", "float"):
            return self._wrong(node, f"{text[:60]!r} has the tag {_tag(node)} but is not one")
        return self._wrong(node, f"the tag {_tag(node)} is not supported; remove it, or write the value as text in quotes")

    def _text(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        if odd := _SURROGATE.search(text):
            return self._wrong(node, f"text can't contain the character {odd[0]!r}")
        return text

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        """Keys are the text as written: `on: 1` has the key "on". A merge (`<<`) adds keys that the mapping lacks."""
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for one in self._merged(value):
                    merged = {**one, **merged}
                continue
            if not isinstance(key, yaml.ScalarNode):
                self._wrong(key, "a key must be text")
                continue
            name = self._text(key)
            if name in own:
                self._wrong(key, f"the key {name[:60]!r} is already used in line {lines[name]}")
            elif name is not None:
                own[name] = self.made(value)
                lines[name] = key.start_mark.line + 1
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> Iterator[dict[str, Any]]:
        for one in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(one, yaml.MappingNode):
                yield self._mapping(one)
            else:
                self._wrong(one, "<< takes a mapping, or a list of mappings")

    def _wrong(self, node: yaml.Node, why: str) -> None:
        self.problems.append(f"{why}{_at(node.start_mark)}")


def _check_size(root: yaml.Node) -> None:
    """Count values with all aliases expanded: nine lines of aliases can mean a billion values, or endless recursion."""
    sizes: dict[int, int] = {}
    under_way: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in under_way:
            raise UsageError(f"a value contains itself{_at(node.start_mark)}")
        if id(node) not in sizes:
            under_way.add(id(node))
            sizes[id(node)] = 1 + sum(map(size, _children(node)))
            under_way.remove(id(node))
        return sizes[id(node)]

    if (whole := size(root)) > MOST_VALUES:
        raise UsageError(f"its aliases expand to {whole:.3g} values, at most {MOST_VALUES:,} are allowed")


def _children(node: yaml.Node) -> Sequence[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _at(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")[:60]
