"""Other ways to write the same code are the same; code that only looks alike is not. Python itself is asked which is which."""

from __future__ import annotations

import contextlib
import io
import textwrap
from pathlib import Path

import pytest

from flatout.pipelines.identity.code import ProjectCode

# a program and another way to write it; both print the same
SAME = {
    "arithmetic of literals": ("print(60 * 60 + 2 ** 3 - -1, 'a' + 'b', ~5)", "print(3609, 'ab', -6)"),
    "list or tuple that is gone through": (
        "x = 2\nprint([n for n in [1, x]], x in [1, x])\nfor n in [3, x]:\n    print(n)",
        "x = 2\nprint([n for n in (1, x)], x in (1, x))\nfor n in (3, x):\n    print(n)",
    ),
    "negated comparison": ("x = 2\nprint(not x in (1, 2), not x is None)", "x = 2\nprint(x not in (1, 2), x is not None)"),
    "nested conditions": ("x = 2\nprint(x and (x > 1 and x < 5))", "x = 2\nprint(x and x > 1 and x < 5)"),
    "format": ("x = 2.5\nprint('{:.2f} {{}}'.format(x), f'a')", "x = 2.5\nprint(f'{x:.2f} {{}}', 'a')"),
    "else after return": (
        "def f(x):\n    if x:\n        return 1\n    else:\n        y = 2\n        return y\nprint(f(0), f(1))",
        "def f(x):\n    if x:\n        return 1\n    return 2\nprint(f(0), f(1))",
    ),
    "conditional expression": (
        "def f(x):\n    return 1 if x else 2\nprint(f(0), f(1))",
        "def f(x):\n    if x:\n        return 1\n    return 2\nprint(f(0), f(1))",
    ),
    "if in if": (
        "def f(x):\n    if x:\n        if x > 1:\n            return 1\nprint(f(0), f(2))",
        "def f(x):\n    if x and x > 1:\n        return 1\n    return None\nprint(f(0), f(2))",
    ),
    "with in with": (
        "from contextlib import nullcontext as n\nwith n(1) as a:\n    with n(2) as b:\n        print(a, b)",
        "from contextlib import nullcontext as n\nwith n(1) as a, n(2) as b:\n    print(a, b)",
    ),
    "result that is returned at once": (
        "def f(x):\n    unused = 3\n    result: int = x + 1\n    return result\nprint(f(1))",
        "def f(x):\n    return x + 1\nprint(f(1))",
    ),
    "empty else": ("for n in (1, 2):\n    print(n)\nelse:\n    pass", "for n in (1, 2):\n    print(n)"),
    "type hints": ("def f(x):\n    return x\nprint(f(1))\nN = 3\nprint(N)", "def f(x: int | None) -> 'int':\n    return x\nprint(f(1))\nN: int = 3\nprint(N)"),  # noqa: E501
    "types of fields": (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 3\nprint(A())",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: list[int] | None = 3\nprint(A())",
    ),
    "names of helpers, constants, imports and parameters": (
        "import math\nLIMIT = 3\ndef helper(value, most=9):\n    return math.floor(min(value, most, LIMIT))\nprint(helper(7.5))",  # noqa: E501
        "import math as m\nMOST = 3\ndef _least(x, y=9):\n    return m.floor(min(x, y, MOST))\nprint(_least(7.5))",
    ),
    "docstring with the name of a constant": (
        "LIMIT = 3\ndef f():\n    return LIMIT\nprint(f())",
        "LIMIT = 3\ndef f():\n    'At most LIMIT.'\n    return LIMIT\nprint(f())",
    ),
    "order of constants": ("A = 1\nB = [2]\nprint(A, B)", "B = [2]\nA = 1\nprint(A, B)"),
}  # fmt: skip
# a program and one that looks much like it; they print something else, or one of them fails
OTHER = {
    "one list or two": ("A = []\nB = []\nA.append(1)\nprint(A, B)", "A = []\nB = []\nB.append(1)\nprint(A, B)"),
    "state of equal helpers": (
        "def f(x, seen=[]):\n    seen.append(x)\n    return seen\ndef g(x, seen=[]):\n    seen.append(x)\n    return seen\nprint(f(1), f(2), g(3))",  # noqa: E501
        "def f(x, seen=[]):\n    seen.append(x)\n    return seen\ndef g(x, seen=[]):\n    seen.append(x)\n    return seen\nprint(f(1), g(2), g(3))",  # noqa: E501
    ),
    "list that is kept": ("def f(x=[1]):\n    return x\nprint(f())", "def f(x=(1,)):\n    return x\nprint(f())"),
    "what the first iterable names": (
        "def f(x, y):\n    x = x + [1]\n    y = y + [2]\n    return [x for x in x] + y\nprint(f([], []))",
        "def f(x, y):\n    x = x + [1]\n    y = y + [2]\n    return [y for y in y] + y\nprint(f([], []))",
    ),
    "attribute of a class inside": (
        "def f():\n    x = 1\n    class A:\n        x = 2\n    return A.x\nprint(f())",
        "def f():\n    y = 1\n    class A:\n        y = 2\n    return A.x\nprint(f())",
    ),
    "global inside of a function that has it as a local": (
        "x = 7\ndef f():\n    x = 1\n    def g():\n        global x\n        return x\n    return g()\nprint(f())",
        "x = 7\ndef f():\n    q = 1\n    def g():\n        global x\n        return q\n    return g()\nprint(f())",
    ),
    "else after a branch that may go on": (
        "def f(x):\n    if x:\n        print(1)\n    else:\n        print(2)\nf(1)",
        "def f(x):\n    if x:\n        print(1)\n    print(2)\nf(1)",
    ),
    "zero with a sign": ("print(-0.0)", "print(0.0)"),
    "number and truth": ("print(1)", "print(True)"),
    "division of literals": ("print(7 / 2)", "print(7 // 2)"),
    "formatted or represented": ("x = 'a'\nprint('{}'.format(x))", "x = 'a'\nprint('{!r}'.format(x))"),
    "local that a closure sees": (
        "def f():\n    x = 1\n    def g():\n        return x\n    x = 2\n    return g()\nprint(f())",
        "def f():\n    x = 1\n    def g():\n        return x\n    return g()\nprint(f())",
    ),
    "type that is none": ("def f(x):\n    return x\nprint(f(1))", "def f(x: int[3]):\n    return x\nprint(f(1))"),
    "type that a class hides": (
        "class A:\n    def list(self):\n        return 1\n    def g(self, x):\n        return x\nprint(A().g(1))",
        "class A:\n    def list(self):\n        return 1\n    def g(self, x: list[int]):\n        return x\nprint(A().g(1))",
    ),
    "field that belongs to the class": (
        "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: int = 3\nprint(A())",
        "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: typing.ClassVar = 3\nprint(A())",
    ),
    "types of fields that are asked for": (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 3\nprint([f.type for f in dataclasses.fields(A)])",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: float = 3\nprint([f.type for f in dataclasses.fields(A)])",  # noqa: E501
    ),
    "names of helpers that are asked for": (
        "def helper():\n    return 1\nprint(helper.__name__, helper())",
        "def other():\n    return 1\nprint(other.__name__, other())",
    ),
    "names that are listed": ("LIMIT = 3\nprint([n for n in dir() if n > 'K' and n < 'Z'])", "LEAST = 3\nprint([n for n in dir() if n > 'K' and n < 'Z'])"),  # noqa: E501
    "names in a text": ("def helper():\n    return 1\nprint(eval('helper()'), helper())", "def other():\n    return 1\nprint(eval('helper()'), other())"),  # noqa: E501
    "parameter that a call names": (
        "def f(value):\n    return value\nprint(f(value=1))", "def f(x):\n    return x\nprint(f(value=1))",
    ),
    "name that hides a builtin": ("def low(x):\n    return 0\nprint(min(3, 4))\nlow(1)", "def min(*x):\n    return 0\nprint(min(3, 4))\nmin(1)"),  # noqa: E501
    "decorator inside that reads types": (
        "import inspect\ndef main():\n    @lambda f: print(f.__annotations__)\n    def inner(n: int):\n        return n\nmain()",  # noqa: E501
        "import inspect\ndef main():\n    @lambda f: print(f.__annotations__)\n    def inner(n: str):\n        return n\nmain()",  # noqa: E501
    ),
}  # fmt: skip


def digest(folder: Path, program: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "main.py").write_text(textwrap.dedent(program))
    return ProjectCode(folder, {}).identity("main.py").digest


def printed(program: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(compile(program, "main.py", "exec", dont_inherit=True), {"__name__": "__main__"})
        except Exception as error:
            return f"{out.getvalue()}{type(error).__name__}"
    return out.getvalue()


@pytest.mark.parametrize("name", SAME)
def test_another_way_to_write_the_same_is_the_same(tmp_path: Path, name: str) -> None:
    one, other = SAME[name]
    assert printed(one) == printed(other) and "Error" not in printed(one)
    assert digest(tmp_path / "a", one) == digest(tmp_path / "a", other)


@pytest.mark.parametrize("name", OTHER)
def test_what_only_looks_alike_is_something_else(tmp_path: Path, name: str) -> None:
    one, other = OTHER[name]
    assert printed(one) != printed(other), "the test itself"
    assert digest(tmp_path / "a", one) != digest(tmp_path / "a", other)


@pytest.mark.parametrize(
    ("other", "counts"), [("X = 1", False), ("print('b')", True), ("import deep", False), ("import loud", True)]
)
def test_the_order_of_imports_counts_where_running_them_can_be_seen(tmp_path: Path, other: str, counts: bool) -> None:
    files = {
        "a.py": "A = 1",
        "b.py": f"{other}\nB = 2",
        "deep.py": "import json",
        "loud.py": "import louder",
        "louder.py": "print(1)",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    uses = "\nprint(a.A, b.B)\n"
    assert (digest(tmp_path, f"import a\nimport b{uses}") != digest(tmp_path, f"import b\nimport a{uses}")) == counts
