"""A project of 42 modules with what makes it hard to say which code a program reaches. `main.py` prints what it computed."""

from __future__ import annotations

FILES: dict[str, str] = {}


def _file(name: str, text: str) -> None:
    FILES[name] = text.lstrip("\n")


_file(
    "main.py",
    '''
"""Computes a table of numbers from the data, and prints it."""
import json
import subprocess
import sys

import settings
from shop import features, monkey, report
from shop.cleaning import clean
from shop.config import Config, describe
from shop.context import counted
from shop.enums import Level, Mode
from shop.half_used import used_a, used_b
from shop.lazy import answer
from shop.loading import load_items
from shop.losses import LOSSES, pick_loss
from shop.model import Ensemble, Linear, make_model
from shop.optim import make_stepper, momentum
from shop.plugins import load_plugin
from shop.registry import run_steps
from shop.state import bump, current
from shop.textio import load_rules, load_weights
from shop import conditional, operators, patterns, shapes
from shop.wrapped import area, slow_square


def main():
    # the order of these is that of the output
    rows = load_items()
    cleaned = clean(rows)
    out = {"cleaned": cleaned, "steps": run_steps(cleaned)}
    out["features"] = features.compute(cleaned)
    model = make_model(settings.MODEL, scale=settings.SCALE)
    out["model"] = [model(x) for x in cleaned]
    out["ensemble"] = Ensemble([Linear(2), Linear(3)]).mean(cleaned)
    out["loss"] = pick_loss(settings.LOSS)(cleaned)
    out["losses"] = sorted(LOSSES)
    stepper = make_stepper(0.5)
    out["steps_taken"] = [stepper(), stepper(), momentum(3)]
    out["plugin"] = load_plugin(settings.PLUGIN).transform(cleaned[0])
    out["config"] = describe(Config(width=4))
    out["weights"] = load_weights()
    out["rules"] = load_rules()
    out["conditional"] = conditional.speed()
    out["lazy"] = answer()
    out["half"] = [used_a(2), used_b(2)]
    out["level"] = [Level.HIGH.weight(), [mode.value for mode in Mode]]
    bump()
    out["state"] = current()
    out["monkey"] = monkey.patched()
    out["wrapped"] = [area(2, 3), slow_square(3), slow_square(3)]
    out["operators"] = operators.total([1, 2, 3])
    out["shapes"] = [shape.area() for shape in shapes.all_shapes()]
    out["patterns"] = [patterns.kind(one) for one in (1, "a", [1, 2], {"x": 1})]
    with counted("outer") as count:
        out["counted"] = count
    helper = subprocess.run([sys.executable, "tools/prepare.py"], capture_output=True, text=True, check=True)
    out["prepared"] = helper.stdout.strip()
    print(report.render(out))


def debug_main():
    print("never called", json.dumps({}))


if __name__ == "__main__":
    main()
''',
)
_file(
    "settings.py",
    '''
"""What the program is asked to do."""
import os

MODEL = "linear"
SCALE = 1.5
LOSS = "squared"
PLUGIN = os.environ.get("SHOP_PLUGIN", "alpha")
VERBOSE = False
UNUSED_LIMIT = 100
PRECISION = int(os.getenv("SHOP_PRECISION", "3"))
''',
)
_file(
    "shop/__init__.py",
    '''
"""A shop."""
from shop.version import VERSION
from shop.base import Base

NAME = "shop " + VERSION
''',
)
_file(
    "shop/version.py",
    """
VERSION = "1.0"
CODENAME = "first"
""",
)
_file(
    "shop/loading.py",
    '''
import csv
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"
DELIMITER = ","


def load_items(path=DATA / "items.csv"):
    """Rows of the table."""
    with open(path) as file:
        found = [row for row in csv.DictReader(file, delimiter=DELIMITER)]
    return [float(row["price"]) * float(row["count"]) for row in found]


def load_archive():
    return (DATA / "archive.csv").read_text()
''',
)
_file(
    "shop/cleaning.py",
    """
from shop.decorators import logged, limited
from shop.stats import center

LIMIT = 1000.0
FILL = -1.0


@logged("clean")
@limited
def clean(values):
    kept = []
    for value in values:
        if value < LIMIT:
            kept.append(value)
    return center(kept)


def fill(values):
    return [FILL if value is None else value for value in values]
""",
)
_file(
    "shop/decorators.py",
    '''
import functools

CALLS = []
FACTOR = 1


def logged(label):
    """Writes down each call."""
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            CALLS.append(label)
            return function(*args, **kwargs)
        return wrapper
    return decorate


def limited(function):
    bound = 7 * FACTOR

    @functools.wraps(function)
    def wrapper(values):
        return function(values[:bound])
    return wrapper


def twice(function):
    def wrapper(*args):
        return 2 * function(*args)
    return wrapper
''',
)
_file(
    "shop/stats.py",
    """
from shop.rounding import rounded


def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def center(values):
    middle = mean(values)
    return [rounded(value - middle) for value in values]


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def spread(values):
    return max(values) - min(values)
""",
)
_file(
    "shop/rounding.py",
    """
from settings import PRECISION

OFFSET = 0.0
_SCALES = {"coarse": 1, "fine": 1000}


def rounded(value):
    # half up
    return round(value + OFFSET, PRECISION)


def truncated(value):
    return int(value * _SCALES["coarse"])
""",
)
_file(
    "shop/registry.py",
    """
STEPS = {}
ORDER = ["scale", "clip"]


def register(name):
    def add(function):
        STEPS[name] = function
        return function
    return add


def run_steps(values):
    import shop.steps

    for name in ORDER:
        values = STEPS[name](values)
    return values
""",
)
_file(
    "shop/steps/__init__.py",
    """
from shop.steps import clip, rank, scale
""",
)
_file(
    "shop/steps/scale.py",
    """
from shop.registry import register

BY = 3.0


@register("scale")
def scale(values):
    return [value * BY for value in values]
""",
)
_file(
    "shop/steps/clip.py",
    """
from shop.registry import register

LOW, HIGH = -50.0, 50.0


@register("clip")
def clip(values):
    return [min(max(value, LOW), HIGH) for value in values]
""",
)
_file(
    "shop/steps/rank.py",
    """
from shop.registry import register


@register("rank")
def rank(values):
    return sorted(range(len(values)), key=values.__getitem__)
""",
)
_file(
    "shop/features.py",
    """
from shop.mathx import *
from shop import stats as st


def compute(values):
    squares = [square(v) for v in values]
    return {"squares": total(squares), "median": st.median(values), "cubes": total(map(cube, values))}


def extra(values):
    return halve(total(values))
""",
)
_file(
    "shop/mathx.py",
    """
__all__ = ["square", "cube", "total", "halve"]

BIAS = 0.25


def square(x):
    return x * x + BIAS


def cube(x):
    return x ** 3


def total(values):
    result = 0
    for one in values:
        result += one
    return round(result, 4)


def halve(x):
    return x / 2


def hidden(x):
    return x
""",
)
_file(
    "shop/base.py",
    """
class Base:
    kinds = {}
    prefix = "kind:"

    def __init_subclass__(cls, kind=None, **kwargs):
        super().__init_subclass__(**kwargs)
        if kind:
            Base.kinds[kind] = cls

    def label(self):
        return self.prefix + type(self).__name__

    def unused_method(self):
        return "never"
""",
)
_file(
    "shop/model.py",
    """
from shop.base import Base
from shop.stats import mean


class Model(Base):
    bias = 1.0
    unused_attribute = 3

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, x):
        return self.forward(x) + self.bias

    def forward(self, x):
        raise NotImplementedError

    @property
    def doubled(self):
        return self.scale * 2

    @classmethod
    def of(cls, scale):
        return cls(scale)


class Linear(Model, kind="linear"):
    slope = 2.0

    def forward(self, x):
        return x * self.slope * self.doubled

    def explain(self):
        return f"slope {self.slope}"


class Quadratic(Model, kind="quadratic"):
    def forward(self, x):
        return x * x


class Ensemble:
    DIVISOR = 2

    def __init__(self, members):
        self.members = members

    def mean(self, values):
        outputs = [mean([member(v) for v in values]) for member in self.members]
        return sum(outputs) / self.DIVISOR

    def __len__(self):
        return len(self.members)


def make_model(kind, **options):
    return Base.kinds[kind](**options)
""",
)
_file(
    "shop/losses.py",
    """
from shop import activations

POWER = 2


def squared(values):
    return sum(activations.apply("relu", v) ** POWER for v in values)


def absolute(values):
    return sum(abs(v) for v in values)


def _hinge(values):
    return max(values)


LOSSES = {"squared": squared, "absolute": absolute}


def pick_loss(name):
    return LOSSES[name]
""",
)
_file(
    "shop/activations.py",
    """
import sys

LEAK = 0.1


def relu(x):
    return x if x > 0 else LEAK * x


def identity(x):
    return x


def apply(name, x):
    return getattr(sys.modules[__name__], name)(x)
""",
)
_file(
    "shop/optim.py",
    """
RATE = 0.9


def make_stepper(rate, start=10.0):
    position = start
    taken = 0

    def step():
        nonlocal position, taken
        taken += 1
        position = position * rate
        return [taken, position]

    def reset():
        nonlocal position
        position = start

    return step


momentum = lambda n: RATE ** n
nesterov = lambda n: RATE ** (n + 1)
""",
)
_file(
    "shop/plugins/__init__.py",
    """
import importlib


def load_plugin(name):
    return importlib.import_module(f"{__name__}.{name}")
""",
)
_file(
    "shop/plugins/alpha.py",
    """
SHIFT = 11


def transform(x):
    return x + SHIFT


def inverse(x):
    return x - SHIFT
""",
)
_file(
    "shop/plugins/beta.py",
    """
def transform(x):
    return x * 5
""",
)
_file(
    "shop/conditional.py",
    """
try:
    from shop.fast_path import run
except ImportError:
    from shop.slow_path import run

LABEL = "speed"


def speed():
    return [LABEL, run(4)]
""",
)
_file(
    "shop/slow_path.py",
    """
COST = 8


def run(n):
    return n * COST


def idle(n):
    return n
""",
)
_file(
    "shop/textio.py",
    """
import json
import os

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
NAMES = ["first", "second"]


def load_weights():
    with open("data/weights.json") as file:
        return json.load(file)


def read_rule(name):
    with open(os.path.join(ROOT, "rules", f"{name}.json")) as file:
        return json.load(file)["value"]


def load_rules():
    return [read_rule(name) for name in NAMES]


def save(values, path="result.json"):
    with open(path, "w") as file:
        json.dump(values, file)
""",
)
_file(
    "shop/report.py",
    '''
"""Reports as JSON."""
from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shop.typing_only import Table

INDENT = None
_TEMPLATE = "result: {body}"


def render(out: dict[str, object], indent: int | None = INDENT) -> str:
    body = json.dumps(out, indent=indent, sort_keys=True, default=str)
    return _TEMPLATE.format(body=body)


def render_table(table: Table) -> str:
    return "\\n".join(table)
''',
)
_file(
    "shop/typing_only.py",
    """
class Table(list):
    columns = 3
""",
)
_file(
    "shop/config.py",
    """
from dataclasses import asdict, dataclass, field


@dataclass
class Config:
    width: int = 8
    depth: int = 2
    names: list = field(default_factory=lambda: ["a", "b"])

    def area(self):
        return self.width * self.depth

    def volume(self):
        return self.area() * 10


@dataclass
class Unused:
    size: int = 5


def describe(config):
    return {**asdict(config), "area": config.area()}
""",
)
_file(
    "shop/context.py",
    """
from contextlib import contextmanager

COUNTS = {}
START = 1


@contextmanager
def counted(name):
    COUNTS[name] = COUNTS.get(name, 0) + START
    try:
        yield COUNTS[name]
    finally:
        COUNTS[name] = 0
""",
)
_file(
    "shop/enums.py",
    """
import enum


class Level(enum.Enum):
    LOW = 1
    HIGH = 10

    def weight(self):
        return self.value * 2

    def inverted(self):
        return -self.value


class Mode(enum.Enum):
    A = "a"
    B = "b"


class Spare(enum.Enum):
    X = 1
""",
)
_file(
    "shop/half_used.py",
    '''
"""Some of this is used."""

ONE = 1
TWO = 2
THREE = 3


def used_a(x):
    """Adds one."""
    result = x + ONE
    return result


def used_b(x):
    return _inner(x) * TWO


def _inner(x):
    limit = 100
    return min(x, limit)


def unused_c(x):
    return x + THREE


class UnusedClass:
    size = 4

    def grow(self):
        return self.size + 1
''',
)
_file(
    "shop/lazy.py",
    """
from shop import late


def answer():
    return [late.deep(2), late.VALUE]
""",
)
_file(
    "shop/late/__init__.py",
    """
_WHERE = {"deep": "inner", "VALUE": "inner", "spare": "other"}


def __getattr__(name):
    import importlib

    if name not in _WHERE:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"shop.late.{_WHERE[name]}"), name)
""",
)
_file(
    "shop/late/inner.py",
    """
VALUE = 21


def deep(x):
    return x + VALUE
""",
)
_file(
    "shop/late/other.py",
    """
def spare(x):
    return x
""",
)
_file(
    "shop/state.py",
    """
_count = 5
STEP = 2
IDLE_STEP = 9


def bump():
    global _count
    _count += STEP


def reset():
    global _count
    _count = IDLE_STEP


def current():
    return _count
""",
)
_file(
    "shop/monkey.py",
    """
from shop import stats

EXTRA = 0.5


def _spread(values):
    return max(values) - min(values) + EXTRA


stats.spread = _spread


def patched():
    return stats.spread([1, 5])
""",
)
_file(
    "shop/wrapped.py",
    """
import functools

from shop.decorators import twice

COUNT = []


@twice
def area(a, b):
    return a * b


@twice
def unused_wrapped(a):
    return a + 1


@functools.lru_cache(maxsize=None)
def slow_square(x):
    COUNT.append(x)
    return x * x + len(COUNT)
""",
)
_file(
    "shop/operators.py",
    """
import operator
from functools import reduce

BASE = 100
_add = operator.add
TABLE = [n * n for n in range(4)]
SPARE_TABLE = [n + 1 for n in range(4)]


class Pipe:
    def __init__(self, *functions):
        self.functions = functions

    def __or__(self, other):
        return Pipe(*self.functions, other)

    def __call__(self, value):
        for function in self.functions:
            value = function(value)
        return value


def _sum(values):
    return reduce(_add, values, BASE)


def _scale(value):
    return value * 2 + TABLE[-1]


PIPE = Pipe(_sum) | _scale


def total(values):
    return PIPE(values)
""",
)
_file(
    "shop/shapes.py",
    """
import abc


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self):
        ...

    def name(self):
        return type(self).__name__


class Square(Shape):
    side = 3

    def area(self):
        return self.side ** 2


class Circle(Shape):
    radius = 2

    def area(self):
        return 3 * self.radius ** 2


def all_shapes():
    return [one() for one in Shape.__subclasses__()]
""",
)
_file(
    "shop/patterns.py",
    """
SMALL = 10


def kind(value):
    match value:
        case int() if value < SMALL:
            return "small"
        case str() as text:
            return "text " + text
        case [first, *rest]:
            return f"list of {first} and {len(rest)}"
        case {"x": inner}:
            return f"x {inner}"
        case _:
            return "other"
""",
)
_file(
    "shop/unused.py",
    """
SIZE = 12


def never(x):
    return x * SIZE
""",
)
_file(
    "tools/prepare.py",
    """
import helper_lib

PREFIX = "ready"


def prepare():
    return f"{PREFIX} {helper_lib.count()}"


if __name__ == "__main__":
    print(prepare())
""",
)
_file(
    "tools/helper_lib.py",
    """
START = 41


def count():
    return START + 1


def spare():
    return 0
""",
)
_file(
    "data/items.csv",
    """
price,count
1.5,2
2.25,4
3.0,1
10.0,3
""",
)
_file("data/weights.json", '{"a": 0.5, "b": 0.75}\n')
_file("data/rules/first.json", '{"value": 3}\n')
_file("data/rules/second.json", '{"value": 4}\n')
_file("data/rules/third.json", '{"value": 5}\n')
_file("data/archive.csv", "a,b\n1,2\n")
_file("notes.txt", "nothing reads this\n")
