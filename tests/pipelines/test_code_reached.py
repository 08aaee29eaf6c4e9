"""What a program reaches, in the ways that hide it: projects, edits of them that must count, and edits that must not."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from flatout.pipelines.identity.code import CodeIdentity, ProjectCode

Edit = tuple[str, str, str]  # file, old, new; a file that does not exist yet has nothing old


@dataclass(frozen=True)
class Case:
    """`said`: a part of a fallback; without it there must be none. `variables`: each of them must count."""

    files: dict[str, str]
    counts: list[Edit]
    does_not: list[Edit]
    said: str
    variables: dict[str, str]


CASES: dict[str, Case] = {}


def _case(
    name: str,
    project: str,
    counts: list[Edit] | None = None,
    does_not: list[Edit] | None = None,
    said: str = "",
    variables: dict[str, str] | None = None,
) -> None:
    files = {}
    for part in f"\n{textwrap.dedent(project).strip()}\n".split("\n== ")[1:]:
        file, _, text = part.partition("\n")
        files[file] = text
    CASES[name] = Case(files, counts or [], does_not or [], said, variables or {})


_case(
    "star imports of star imports",
    """
    == main.py
    from a import *
    print(deep())
    == a.py
    from b import *
    == b.py
    def deep():
        return 1
    def no():
        return 2
    """,
    counts=[
        ("b.py", "return 1", "return 3"),
        ("b.py", "def deep", "__all__ = []\ndef deep"),
        ("a.py", "from b import *", "from b import *\ndef deep():\n    return 9"),
    ],
    does_not=[
        ("b.py", "return 2", "return 4"),
    ],
)
_case(
    "imports inside of functions",
    """
    == main.py
    def go():
        import a.b as x
        from a import c
        return x.f() + c.g()
    print(go())
    == a/__init__.py
    == a/b.py
    def f():
        return 1
    def no():
        return 2
    == a/c.py
    def g():
        return 3
    """,
    counts=[
        ("a/b.py", "return 1", "return 4"),
        ("a/c.py", "return 3", "return 4"),
        ("a/__init__.py", "", "print(1)"),
    ],
    does_not=[
        ("a/b.py", "return 2", "return 4"),
    ],
)
_case(
    "relative imports and what a package hands on",
    """
    == main.py
    import pkg
    print(pkg.run(), pkg.sub.K)
    == pkg/__init__.py
    from .impl import inner as run
    from . import sub
    == pkg/impl.py
    from ..pkg.sub import K
    def inner():
        return K
    def no():
        return 0
    == pkg/sub.py
    K = 1
    L = 2
    """,
    counts=[
        ("pkg/sub.py", "K = 1", "K = 5"),
        ("pkg/impl.py", "return K", "return -K"),
    ],
    does_not=[
        ("pkg/sub.py", "L = 2", "L = 3"),
        ("pkg/impl.py", "return 0", "return 1"),
    ],
)
_case(
    "a module that is handed on",
    """
    == main.py
    import a
    def use(m):
        return m.step()
    print(use(a))
    == a.py
    def step():
        return 1
    def other():
        return 2
    """,
    counts=[
        ("a.py", "return 1", "return 3"),
    ],
    does_not=[
        ("a.py", "return 2", "return 3"),
    ],
)
_case(
    "getattr with parts of a name",
    """
    == main.py
    class V:
        def on_a(self):
            return 1
        def off_a(self):
            return 2
        def go(self, k):
            return getattr(self, f'on_{k}')()
    print(V().go('a'))
    """,
    counts=[
        ("main.py", "return 1", "return 3"),
    ],
    does_not=[
        ("main.py", "return 2", "return 3"),
    ],
    said="on_*",
)
_case(
    "getattr of a module",
    """
    == main.py
    import a, sys
    print(getattr(a, sys.argv[-1], a.f)())
    == a.py
    def f():
        return 1
    def g():
        return 2
    == b.py
    def g():
        return 1
    """,
    counts=[
        ("a.py", "return 2", "return 3"),
    ],
    does_not=[
        ("a.py", "return 1", "return 1  # one"),
        ("b.py", "return 1", "return 2"),
    ],
    said="all of a counts",
)
_case(
    "getattr of anything",
    """
    == main.py
    class A:
        def f(self):
            return 1
    def call(x, name):
        return getattr(x, name)()
    print(call(A(), open('name.txt').read()))
    == name.txt
    f
    """,
    counts=[
        ("main.py", "return 1", "return 3"),
        ("name.txt", "f", "g"),
    ],
    said="all methods",
)
_case(
    "getters by name",
    """
    == main.py
    import operator
    class A:
        def f(self):
            return 1
        def g(self):
            return 2
    print(operator.methodcaller('f')(A()))
    """,
    counts=[
        ("main.py", "return 1", "return 3"),
    ],
    does_not=[
        ("main.py", "return 2", "return 3"),
    ],
)
_case(
    "names through globals and modules",
    """
    == main.py
    import sys, a
    print(sys.modules['a'].f(), globals()['g'](), vars(a)['h']())
    def g():
        return 1
    == a.py
    def f():
        return 2
    def h():
        return 3
    """,
    counts=[
        ("a.py", "return 2", "return 5"),
        ("a.py", "return 3", "return 5"),
        ("main.py", "return 1", "return 5"),
    ],
    said="all of a counts",
)
_case(
    "decorators that register",
    """
    == main.py
    import reg, plug
    print(reg.ALL)
    == reg.py
    ALL = []
    def add(f):
        ALL.append(f())
        return f
    def named(n):
        def d(f):
            ALL.append((n, f()))
            return f
        return d
    == plug.py
    from reg import add, named
    @add
    def a():
        return 1
    @named('b')
    def b():
        return 2
    def c():
        return 3
    """,
    counts=[
        ("plug.py", "return 1", "return 5"),
        ("plug.py", "return 2", "return 5"),
        ("plug.py", "'b'", "'c'"),
        ("plug.py", "def c", "@add\ndef c"),
    ],
    does_not=[
        ("plug.py", "return 3", "return 5"),
    ],
    said="handed on",
)
_case(
    "single dispatch",
    """
    == main.py
    from functools import singledispatch
    @singledispatch
    def f(x):
        return 0
    @f.register
    def _(x: int):
        return 1
    @f.register(str)
    def _(x):
        return 2
    print(f(1), f('a'))
    """,
    counts=[
        ("main.py", "return 1", "return 5"),
        ("main.py", "return 2", "return 5"),
        ("main.py", "x: int", "x: float"),
    ],
    said="handed on",
)
_case(
    "metaclasses and descriptors",
    """
    == main.py
    import b
    from a import META
    print(META)
    == a.py
    META = []
    class M(type):
        def __new__(m, n, bases, d):
            META.append((n, d.get('k')))
            return super().__new__(m, n, bases, d)
    class D:
        def __set_name__(self, owner, name):
            META.append(name)
    == b.py
    from a import M, D
    class X(metaclass=M):
        k = 1
    class Y:
        d = D()
    class Z:
        k = 3
    """,
    counts=[
        ("b.py", "k = 1", "k = 2"),
        ("b.py", "d = D()", "e = D()"),
        ("a.py", "META.append(name)", "META.append(name * 2)"),
    ],
    does_not=[
        ("b.py", "k = 3", "k = 4"),
    ],
    said="handed on",
)
_case(
    "methods through bases",
    """
    == main.py
    from a import B
    print(B().run())
    == a.py
    class A:
        def run(self):
            return self.hook()
        def idle(self):
            return 0
    class B(A):
        def hook(self):
            return super().run if False else 1
    class C(A):
        def hook(self):
            return 2
    """,
    counts=[
        ("a.py", "else 1", "else 5"),
        ("a.py", "self.hook()", "-self.hook()"),
    ],
    does_not=[
        ("a.py", "return 2", "return 5"),
        ("a.py", "return 0", "return 5"),
    ],
)
_case(
    "special methods and slots",
    """
    == main.py
    class A:
        def __add__(self, o):
            return 1
        def __del__(self):
            print(2)
    print(A() + A())
    """,
    counts=[
        ("main.py", "return 1", "return 3"),
        ("main.py", "print(2)", "print(3)"),
    ],
)
_case(
    "fields, enumerations and named tuples",
    """
    == main.py
    from a import *
    print(P(1), list(E), N(1))
    == a.py
    from dataclasses import dataclass
    from enum import Enum, auto
    from typing import NamedTuple
    @dataclass
    class P:
        x: int
        y: int = 2
        def no(self):
            return 0
    class E(Enum):
        A = auto()
        B = auto()
    class N(NamedTuple):
        a: int
        b: str = 'b'
    """,
    counts=[
        ("a.py", "y: int = 2", "y: int = 3"),
        ("a.py", "    A = auto()\n    B = auto()", "    B = auto()\n    A = auto()"),
        ("a.py", "b: str = 'b'", "b: str = 'c'"),
        ("a.py", "y: int", "z: int"),
    ],
    does_not=[
        ("a.py", "return 0", "return 1"),
    ],
)
_case(
    "statements of a module",
    """
    == main.py
    import a
    print(a.X, a.T)
    == a.py
    X = 1
    for n in range(3):
        X += n
    T = {}
    T['k'] = 1
    U = {}
    with open('u.txt') as f:
        T['u'] = f.read()
    try:
        Y = 1
    finally:
        T['y'] = 2
    if X > 1:
        T['z'] = 3
    S = 5
    == u.txt
    u
    """,
    counts=[
        ("a.py", "range(3)", "range(4)"),
        ("a.py", "T['k'] = 1", "T['k'] = 2"),
        ("u.txt", "u", "v"),
        ("a.py", "T['y'] = 2", "T['y'] = 3"),
        ("a.py", "X > 1", "X > 100"),
        ("a.py", "T['k'] = 1\nU = {}\n", "U = {}\nT = {}\n"),
    ],
    does_not=[
        ("a.py", "S = 5", "S = 6"),
        ("a.py", "U = {}", "U = {1: 2}"),
    ],
)
_case(
    "operators of a class of one's own",
    """
    == main.py
    import dag
    from core import LINKS
    print(LINKS)
    == core.py
    LINKS = []
    class Node:
        def __init__(self, n):
            self.n = n
        def __rshift__(self, o):
            LINKS.append((self.n, o.n))
            return o
    A, B = Node(1), Node(2)
    == dag.py
    from core import A, B
    flow = A >> B
    """,
    counts=[
        ("dag.py", "A >> B", "B >> A"),
        ("core.py", "Node(2)", "Node(3)"),
    ],
)
_case(
    "definitions that depend on a condition",
    """
    == main.py
    import os, sys
    if sys.platform == 'x':
        def f():
            return 1
    else:
        def f():
            return 2
    try:
        import fast
    except ImportError:
        fast = None
    print(f(), fast and fast.K)
    """,
    counts=[
        ("main.py", "return 2", "return 3"),
        ("fast.py", "", "K = 1"),
        ("main.py", "fast = None", "fast = 0"),
    ],
)
_case(
    "a module that starts to hide another",
    """
    == main.py
    import statistics, helper
    print(statistics.mean([1, 2]), helper.f())
    == helper/__init__.py
    def f():
        return 1
    """,
    counts=[
        ("statistics.py", "", "def mean(x):\n    return 0"),
    ],
    does_not=[
        ("helper.py", "", "def f():\n    return 2"),
    ],
)
_case(
    "names set from elsewhere",
    """
    == main.py
    import conf, tune
    tune.apply()
    print(conf.LIMIT, conf.f())
    == conf.py
    LIMIT = 1
    def f():
        return 1
    == tune.py
    import conf
    def apply():
        conf.LIMIT = 2
        setattr(conf, 'f', g)
    def g():
        return 3
    def no():
        conf.LIMIT = 9
    """,
    counts=[
        ("tune.py", "LIMIT = 2", "LIMIT = 4"),
        ("tune.py", "return 3", "return 4"),
    ],
    does_not=[
        ("tune.py", "LIMIT = 9", "LIMIT = 8"),
    ],
)
_case(
    "global names",
    """
    == main.py
    def init():
        global X
        X = 1
    def use():
        return X
    def no():
        global X
        X = 5
    init()
    print(use())
    """,
    counts=[
        ("main.py", "X = 1", "X = 2"),
    ],
    does_not=[
        ("main.py", "X = 5", "X = 6"),
    ],
)
_case(
    "functions in tables, partials and lambdas",
    """
    == main.py
    from functools import partial
    import a
    T = {'x': a.f, 'y': partial(a.g, 2)}
    L = [lambda v: a.h(v)]
    print(T['x'](), T['y'](), L[0](1), list(map(a.k, [1])))
    == a.py
    def f():
        return 1
    def g(n):
        return 2
    def h(v):
        return 3
    def k(v):
        return 4
    def no():
        return 6
    """,
    counts=[
        ("a.py", "return 1", "return 9"),
        ("a.py", "return 2", "return 9"),
        ("a.py", "return 3", "return 9"),
        ("a.py", "return 4", "return 9"),
    ],
    does_not=[
        ("a.py", "return 6", "return 9"),
    ],
)
_case(
    "what sees names of locals",
    """
    == main.py
    def a():
        x = 1
        return locals()
    def b():
        y = 1
        return eval('y')
    def c():
        z = 1
        return f'{z=}'
    def d(t):
        w = 1
        return t.query('@w > 0')
    def e():
        v = 1
        return 'v', v
    print(a(), b(), c(), d, e())
    """,
    counts=[
        ("main.py", "x = 1", "q = 1"),
        ("main.py", "z = 1\n    return f'{z=}'", "q = 1\n    return f'{q=}'"),
        ("main.py", "w = 1", "q = 1"),
    ],
    does_not=[
        ("main.py", "v = 1\n    return 'v', v", "q = 1\n    return 'v', q"),
    ],
)
_case(
    "code that reads its docstrings",
    '''
    == main.py
    """Usage."""
    def f():
        """Of f."""
    print(__doc__, f.__doc__)
    ''',
    counts=[
        ("main.py", "Usage.", "Use."),
        ("main.py", "Of f.", "Of it."),
    ],
    does_not=[
        ("main.py", "print(", "# here\nprint("),
    ],
)
_case(
    "code that reads its source",
    """
    == main.py
    import inspect
    def f():
        return 1
    print(inspect.getsource(f))
    """,
    counts=[
        ("main.py", "return 1", "return 1  # one"),
    ],
    said="comments",
)
_case(
    "code in texts",
    """
    == main.py
    import a
    print(eval('a.f() + 1'))
    == a.py
    def f():
        return 1
    def g():
        return 2
    """,
    counts=[
        ("a.py", "return 1", "return 3"),
        ("main.py", "+ 1", "+ 2"),
    ],
    does_not=[
        ("a.py", "return 2", "return 3"),
    ],
)
_case(
    "code in files",
    """
    == main.py
    exec(open('more.py').read())
    print(f())
    == more.py
    def f():
        return 1
    """,
    counts=[
        ("more.py", "return 1", "return 3"),
    ],
    said="runs a text",
)
_case(
    "pickles",
    """
    == main.py
    import pickle
    print(pickle.load(open('m.bin', 'rb')))
    == m.bin
    x
    == lib/model.py
    class M:
        def __repr__(self):
            return 'm'
    """,
    counts=[
        ("lib/model.py", "'m'", "'n'"),
        ("m.bin", "x", "y"),
    ],
    said="all of the project",
)
_case(
    "plugins from a folder",
    """
    == main.py
    import importlib, pkgutil, plug
    for m in pkgutil.iter_modules(plug.__path__):
        print(importlib.import_module('plug.' + m.name).run())
    == plug/__init__.py
    == plug/a.py
    def run():
        return 1
    == other.py
    def run():
        return 1
    """,
    counts=[
        ("plug/a.py", "return 1", "return 2"),
        ("plug/b.py", "", "def run():\n    return 3"),
    ],
    does_not=[
        ("other.py", "return 1", "return 2"),
        ("plug/a.py", "return 1", "return 1  # same"),
    ],
    said="plug.*",
)
_case(
    "a module by its path",
    """
    == main.py
    import importlib.util
    from pathlib import Path
    s = importlib.util.spec_from_file_location('x', Path(__file__).parent / 'ext' / 'x.py')
    m = importlib.util.module_from_spec(s)
    s.loader.exec_module(m)
    print(m.run())
    == ext/x.py
    def run():
        return 1
    """,
    counts=[
        ("ext/x.py", "return 1", "return 2"),
    ],
    said="all of the project",
)
_case(
    "folders on the path",
    """
    == main.py
    import sys, os
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))
    import thing
    print(thing.f())
    == lib/thing.py
    def f():
        return 1
    == src/deep/__init__.py
    """,
    counts=[
        ("lib/thing.py", "return 1", "return 2"),
    ],
)
_case(
    "a script in a folder, and src",
    """
    == main.py
    import subprocess, sys
    subprocess.run([sys.executable, '-m', 'tools.go'])
    from core.x import K
    print(K)
    == tools/__init__.py
    == tools/go.py
    from . import side
    if __name__ == '__main__':
        print(side.f())
    == tools/side.py
    def f():
        return 1
    == src/core/__init__.py
    == src/core/x.py
    K = 1
    """,
    counts=[
        ("tools/side.py", "return 1", "return 2"),
        ("src/core/x.py", "K = 1", "K = 2"),
        ("tools/go.py", "side.f()", "-side.f()"),
    ],
)
_case(
    "paths of data",
    """
    == main.py
    import os, json, glob
    from pathlib import Path
    HERE = Path(__file__).resolve().parent
    FOLDER = HERE / 'data'
    class C:
        path = 'data/c.csv'
        def read(self):
            return open(self.path).read()
    def read(name):
        return (FOLDER / 'more' / name).read_text()
    def load(folder):
        return (folder / 'weights.json').read_text()
    print(open('data/a.csv').read(), open(os.path.join('data', 'b' + '.csv')).read())
    print(C().read(), read('d.csv'), load(HERE / 'w'))
    print([Path(p).read_text() for p in glob.glob('globbed/*.txt')], [p.name for p in Path('listed').iterdir()])
    with open('out.json', 'w') as f:
        json.dump({}, f)
    Path('made').mkdir(exist_ok=True)
    def no():
        return open('data/no.csv').read()
    == data/a.csv
    a
    == data/b.csv
    b
    == data/c.csv
    c
    == data/no.csv
    no
    == data/more/d.csv
    d
    == w/weights.json
    w
    == globbed/x.txt
    x
    == listed/l
    l
    == out.json
    {}
    == made/m
    m
    """,
    counts=[
        ("data/a.csv", "a", "aa"),
        ("data/b.csv", "b", "bb"),
        ("data/c.csv", "c", "cc"),
        ("data/more/d.csv", "d", "e"),
        ("w/weights.json", "w", "v"),
        ("globbed/x.txt", "x", "y"),
        ("globbed/y.txt", "", "y"),
        ("listed/new", "", "n"),
    ],
    does_not=[
        ("data/no.csv", "no", "on"),
        ("out.json", "{}", "[]"),
        ("made/m", "m", "n"),
    ],
    said="listed",
)
_case(
    "a file that is waited for",
    """
    == main.py
    from pathlib import Path
    print(Path('override.json').exists())
    """,
    counts=[
        ("override.json", "", "{}"),
    ],
)
_case(
    "environment variables",
    """
    == main.py
    import os
    from os import environ, getenv as ge
    NAME = 'APP_A'
    print(os.environ.get(NAME), environ['APP_B'], ge('APP_C'), 'APP_D' in os.environ)
    print({k: v for k, v in os.environ.items() if k.startswith('Z_')})
    import subprocess
    subprocess.run(['true'], env={**os.environ, 'X': '1'})
    """,
    said="environment",
    variables={"APP_A": "1", "APP_B": "2", "APP_C": "3", "APP_D": "4", "Z_1": "5"},
)
_case(
    "an environment variable that names a file",
    """
    == main.py
    import os
    print(open(os.environ.get('CONFIG', 'a.txt')).read())
    == a.txt
    a
    """,
    counts=[
        ("a.txt", "a", "b"),
    ],
)
_case(
    "a file that is no Python",
    """
    == main.py
    import broken
    == broken.py
    def f(:
    """,
    counts=[
        ("broken.py", "def f(", "def g("),
    ],
    said="broken",
)
_case(
    "modules that import each other",
    """
    == main.py
    import a
    print(a.f())
    == a.py
    import b
    X = 1
    def f():
        return b.g()
    == b.py
    import a
    def g():
        return a.X
    """,
    counts=[
        ("a.py", "X = 1", "X = 2"),
        ("b.py", "return a.X", "return -a.X"),
    ],
)
_case(
    "async code, generators and inner classes",
    """
    == main.py
    import asyncio
    from a import go, Outer
    print(asyncio.run(go()), Outer.Inner().f())
    == a.py
    async def go():
        return [x async for x in gen()]
    async def gen():
        yield 1
    class Outer:
        class Inner:
            K = 2
            def f(self):
                return self.K
    """,
    counts=[
        ("a.py", "yield 1", "yield 3"),
        ("a.py", "K = 2", "K = 3"),
    ],
)
_case(
    "annotations",
    """
    == main.py
    from __future__ import annotations
    import typing
    def f(x: int) -> int:
        y: int = x
        return y
    def handed(x: int):
        return x
    def run(g):
        return g(1)
    print(f(1), run(handed))
    """,
    counts=[
        ("main.py", "def handed(x: int)", "def handed(x: float)"),
    ],
    does_not=[
        ("main.py", "def f(x: int) -> int", "def f(x: float) -> str"),
        ("main.py", "y: int = x", "y = x"),
    ],
)
_case(
    "a text that grows by itself",
    """
    == main.py
    def f(n):
        s = 'a'
        s = s + s + 'b'
        s = s + '/' + s
        return open(s)
    T = ''
    T = T + T + 'x'
    print(f, T)
    """,
    counts=[
        ("main.py", "'b'", "'c'"),
    ],
)

_case(
    "packages that list their modules",
    """
    == main.py
    from pkg import *
    print(sub.f(), LOG)
    == pkg/__init__.py
    LOG = []
    __all__ = ["sub", "LOG", "side"]
    == pkg/sub.py
    def f():
        return 1
    def no():
        return 2
    == pkg/side.py
    from pkg import LOG
    LOG.append(3)
    """,
    counts=[
        ("pkg/sub.py", "return 1", "return 5"),
        ("pkg/side.py", "append(3)", "append(4)"),
    ],
    does_not=[
        ("pkg/sub.py", "return 2", "return 5"),
    ],
)
_case(
    "attributes in the fields of a text",
    """
    == main.py
    class A:
        @property
        def name(self):
            return 1
        @property
        def other(self):
            return 2
    print("{0.name}".format(A()))
    """,
    counts=[
        ("main.py", "return 1", "return 3"),
    ],
    does_not=[
        ("main.py", "return 2", "return 3"),
    ],
)
_case(
    "an object that a library writes to",
    """
    == main.py
    import contextlib
    class Tee:
        def write(self, text):
            open("log.txt", "a").write(text.upper())
        def rare(self):
            return 1
    with contextlib.redirect_stdout(Tee()):
        print("a")
    """,
    counts=[
        ("main.py", "text.upper()", "text.lower()"),
    ],
    does_not=[
        ("main.py", "return 1", "return 2"),
    ],
)
_case(
    "another folder to work in",
    """
    == main.py
    import os
    from paths import NAMES
    import paths
    def read(which):
        return open(getattr(paths, "WHERE")).read()
    os.chdir("data")
    print(open("a").read(), read(1), NAMES)
    == paths.py
    WHERE = "b"
    NAMES = 1
    == data/a
    a
    == data/b
    b
    """,
    counts=[
        ("data/a", "a", "c"),
        ("data/b", "b", "c"),
    ],
)
_case(
    "files without an ending below a folder that is not known",
    """
    == main.py
    import sys
    from pathlib import Path
    print((Path(sys.argv[-1]).parent / "model" / "weights").read_text())
    == model/weights
    w
    == model/other
    o
    """,
    counts=[
        ("model/weights", "w", "v"),
    ],
    does_not=[
        ("model/other", "o", "p"),
    ],
    said="model/weights",
)
_case(
    "data of a package",
    """
    == main.py
    import pkgutil
    from importlib import resources
    print(pkgutil.get_data("assets", "a.txt"), (resources.files("assets") / "b.txt").read_text())
    == assets/__init__.py
    == assets/a.txt
    a
    == assets/b.txt
    b
    """,
    counts=[
        ("assets/a.txt", "a", "c"),
        ("assets/b.txt", "b", "c"),
    ],
)

_case(
    "all of a module whose class was in use before",
    """
    == main.py
    import sys
    import a
    print(a.A().f(), getattr(a, sys.argv[-1], None))
    == a.py
    class A:
        def f(self):
            return 1
        def g(self):
            return 2
    """,
    counts=[
        ("a.py", "return 1", "return 3"),
        ("a.py", "return 2", "return 3"),
    ],
    said="all of a counts",
)


def identity(root: Path, files: dict[str, str], variables: dict[str, str] | None = None) -> CodeIdentity:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ProjectCode(root, variables or {}).identity("main.py")


@pytest.mark.parametrize("name", CASES)
def test_what_a_program_reaches(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    before = identity(tmp_path, case.files, case.variables)
    if case.said:
        assert any(case.said in sentence for sentence in before.fallbacks), before.fallbacks
    else:
        assert before.fallbacks == ()
    for edits, differs in ((case.counts, True), (case.does_not, False)):
        for file, old, new in edits:
            text = case.files.get(file, "")
            assert old in text
            changed = identity(tmp_path, {file: text.replace(old, new) if old else new}, case.variables)
            assert (changed.digest != before.digest) == differs, f"{file}: {old!r} to {new!r}"
            if file in case.files:
                (tmp_path / file).write_text(text)
            else:
                (tmp_path / file).unlink()
    for variable in case.variables:
        assert identity(tmp_path, {}, {**case.variables, variable: "other"}).digest != before.digest, variable
    assert identity(tmp_path, {}, {**case.variables, "PWD": "1"}).digest == before.digest
