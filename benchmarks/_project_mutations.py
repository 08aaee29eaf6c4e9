"""Edits of the project in `_mutated_project.py`, written down before the code that has to judge them was tried on any.

Whether an edit matters is not said here: the program runs before and after it. Every second edit was looked at while that code
was worked on, the others when it was done.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in a file; without `old` the file is new, without `new` it is removed. Or a variable is set."""

    what: str
    file: str
    old: str
    new: str
    variable: bool = False


MUTATIONS: list[Mutation] = []


def _edit(what: str, file: str, old: str, new: str) -> None:
    MUTATIONS.append(Mutation(what, file, old, new))


# constants, near and far
_edit("constant in a helper of a helper", "shop/rounding.py", "OFFSET = 0.0", "OFFSET = 0.5")
_edit("constant in the settings", "settings.py", "SCALE = 1.5", "SCALE = 2.5")
_edit("constant that nothing uses", "settings.py", "UNUSED_LIMIT = 100", "UNUSED_LIMIT = 200")
_edit("constant of an unused function", "shop/cleaning.py", "FILL = -1.0", "FILL = -2.0")
_edit("limit that cuts", "shop/cleaning.py", "LIMIT = 1000.0", "LIMIT = 10.0")
_edit("constant of a module that nothing imports", "shop/unused.py", "SIZE = 12", "SIZE = 13")
_edit("unused constant beside a used one", "shop/version.py", 'CODENAME = "first"', 'CODENAME = "second"')
_edit("constant used in an unused branch of a table", "shop/rounding.py", '"coarse": 1', '"coarse": 2')
_edit("constant of a literal table", "shop/operators.py", "BASE = 100", "BASE = 101")
_edit("another model", "settings.py", 'MODEL = "linear"', 'MODEL = "quadratic"')
_edit("another loss", "settings.py", 'LOSS = "squared"', 'LOSS = "absolute"')
_edit("default of an environment variable", "settings.py", '"SHOP_PLUGIN", "alpha"', '"SHOP_PLUGIN", "beta"')
_edit("default precision", "settings.py", '"SHOP_PRECISION", "3"', '"SHOP_PRECISION", "0"')

# comments, docstrings, layout
_edit("comment changed", "shop/rounding.py", "# half up", "# half to even")
_edit("comment added in a function", "shop/stats.py", "total = 0.0", "total = 0.0  # a float")
_edit("comment in the entry", "main.py", "# the order of these is that of the output", "# no order")
_edit("comment at the top", "shop/loading.py", "import csv", "# reads\nimport csv")
_edit("docstring of a function", "shop/half_used.py", '"""Adds one."""', '"""Adds ONE to x."""')
_edit("docstring of a module", "shop/half_used.py", '"""Some of this is used."""', '"""All of this may be used."""')
_edit("docstring of the entry", "main.py", "Computes a table of numbers", "Works out a table of numbers")
_edit("docstring added", "shop/stats.py", "def mean(values):\n", 'def mean(values):\n    """The mean."""\n')
_edit("docstring of a decorator", "shop/decorators.py", '"""Writes down each call."""', '"""Notes each call."""')
_edit("docstring of a package", "shop/__init__.py", '"""A shop."""', '"""The shop."""')
_edit("blank lines", "shop/model.py", "class Ensemble:", "\n\nclass Ensemble:")
_edit("parentheses", "shop/stats.py", "return total / len(values)", "return (total / len(values))")
_edit("other quotes", "shop/conditional.py", '"speed"', "'speed'")
_edit(
    "a line broken",
    "shop/config.py",
    "return self.width * self.depth",
    "return (\n            self.width\n            * self.depth\n        )",
)
_edit("type of a local", "shop/half_used.py", "result = x + ONE", "result: int = x + ONE")
_edit("trailing comma", "shop/textio.py", '["first", "second"]', '["first", "second",]')
_edit("pass beside a statement", "shop/state.py", "    _count += STEP", "    pass\n    _count += STEP")

# names
_edit("local renamed", "shop/half_used.py", "result = x + ONE\n    return result", "answer = x + ONE\n    return answer")
_edit(
    "loop variable renamed",
    "shop/stats.py",
    "for value in values:\n        total += value",
    "for each in values:\n        total += each",
)
_edit(
    "variable of a comprehension renamed", "shop/features.py", "[square(v) for v in values]", "[square(one) for one in values]"
)
_edit(
    "variable of an except renamed",
    "shop/loading.py",
    "as file:\n        found = [row for row in csv.DictReader(file,",
    "as table:\n        found = [row for row in csv.DictReader(table,",
)
_edit(
    "local of a closure renamed",
    "shop/optim.py",
    "    taken = 0\n\n    def step():\n        nonlocal position, taken\n        taken += 1\n        position = position * rate\n        return [taken, position]",  # noqa: E501
    "    count = 0\n\n    def step():\n        nonlocal position, count\n        count += 1\n        position = position * rate\n        return [count, position]",  # noqa: E501
)
_edit(
    "capture of a pattern renamed",
    "shop/patterns.py",
    'case str() as text:\n            return "text " + text',
    'case str() as word:\n            return "text " + word',
)
_edit(
    "local renamed to what another is called",
    "shop/textio.py",
    "as file:\n        return json.load(file)\n",
    "as json_file:\n        return json.load(json_file)\n",
)
_edit(
    "local that hides a constant",
    "shop/half_used.py",
    "limit = 100\n    return min(x, limit)",
    "TWO = 100\n    return min(x, TWO)",
)
_edit(
    "two locals swapped by mistake",
    "shop/stats.py",
    "return [rounded(value - middle) for value in values]",
    "return [rounded(middle - value) for value in values]",
)

# functions that are used, or not
_edit("helper changed", "shop/stats.py", "return total / len(values)", "return total / (len(values) + 1)")
_edit("unused function changed", "shop/half_used.py", "return x + THREE", "return x - THREE")
_edit("unused function removed", "shop/half_used.py", "def unused_c(x):\n    return x + THREE\n", "")
_edit("unused function added", "shop/half_used.py", "def unused_c(x):", "def unused_d(x):\n    return x\n\n\ndef unused_c(x):")
_edit("unused function of the entry", "main.py", '"never called"', '"not called"')
_edit("unused class changed", "shop/half_used.py", "return self.size + 1", "return self.size + 2")
_edit("unused class attribute", "shop/half_used.py", "    size = 4", "    size = 5")
_edit("function of an unused module", "shop/unused.py", "return x * SIZE", "return x / SIZE")
_edit("unused import of the standard library", "shop/stats.py", "from shop.rounding", "import math\nfrom shop.rounding")
_edit(
    "functions in another order",
    "shop/half_used.py",
    'def used_a(x):\n    """Adds one."""\n    result = x + ONE\n    return result\n\n\ndef used_b(x):\n    return _inner(x) * TWO\n',  # noqa: E501
    'def used_b(x):\n    return _inner(x) * TWO\n\n\ndef used_a(x):\n    """Adds one."""\n    result = x + ONE\n    return result\n',  # noqa: E501
)
_edit("constants in another order", "shop/half_used.py", "ONE = 1\nTWO = 2\n", "TWO = 2\nONE = 1\n")
_edit("helper of a helper changed", "shop/half_used.py", "return min(x, limit)", "return max(x, limit)")
_edit(
    "imports in another order",
    "main.py",
    "from shop.config import Config, describe\nfrom shop.context import counted\n",
    "from shop.context import counted\nfrom shop.config import Config, describe\n",
)

# decorators and closures
_edit("constant in a decorator", "shop/decorators.py", "FACTOR = 1", "FACTOR = 0.3 and 3 // 3 + 1 - 1 and 0")
_edit("wrapper of a decorator", "shop/decorators.py", "return 2 * function(*args)", "return 3 * function(*args)")
_edit("decorator removed", "shop/wrapped.py", "@twice\ndef area", "def area")
_edit("decorated function that nothing uses", "shop/wrapped.py", "return a + 1", "return a + 2")
_edit("cache removed", "shop/wrapped.py", "@functools.lru_cache(maxsize=None)\n", "")
_edit("size of a cache", "shop/wrapped.py", "maxsize=None", "maxsize=128")
_edit("argument of a decorator", "shop/cleaning.py", '@logged("clean")', '@logged("cleaning")')
_edit("inner function of a closure", "shop/optim.py", "taken += 1", "taken += 2")
_edit(
    "inner function that nothing calls",
    "shop/optim.py",
    "        position = start\n\n    return step",
    "        position = start + 1\n\n    return step",
)
_edit("lambda", "shop/optim.py", "momentum = lambda n: RATE ** n", "momentum = lambda n: RATE * n")
_edit(
    "lambda that nothing uses", "shop/optim.py", "nesterov = lambda n: RATE ** (n + 1)", "nesterov = lambda n: RATE ** (n + 2)"
)
_edit("order of decorators", "shop/cleaning.py", '@logged("clean")\n@limited\n', '@limited\n@logged("clean")\n')

# defaults
_edit("default of an argument", "shop/optim.py", "start=10.0", "start=20.0")
_edit("default that is a name", "shop/report.py", "INDENT = None", "INDENT = 1")
_edit("default of an unused function", "shop/textio.py", 'path="result.json"', 'path="results.json"')
_edit("default in a constructor", "shop/model.py", "def __init__(self, scale=1.0)", "def __init__(self, scale=1.25)")

# classes
_edit("class attribute", "shop/model.py", "slope = 2.0", "slope = 2.5")
_edit("inherited class attribute", "shop/model.py", "bias = 1.0", "bias = 1.5")
_edit("unused class attribute of a used class", "shop/model.py", "unused_attribute = 3", "unused_attribute = 4")
_edit("unused method of a used class", "shop/model.py", 'return f"slope {self.slope}"', 'return f"the slope {self.slope}"')
_edit("unused method of a base class", "shop/base.py", 'return "never"', 'return "not ever"')
_edit("unused class method", "shop/model.py", "return cls(scale)", "return cls(scale * 2)")
_edit("property", "shop/model.py", "return self.scale * 2", "return self.scale * 3")
_edit("attribute by its name from an instance", "shop/model.py", "DIVISOR = 2", "DIVISOR = 4")
_edit("what happens when a class is inherited from", "shop/base.py", "Base.kinds[kind] = cls", "Base.kinds[kind[::-1]] = cls")
_edit("name under which a class is registered", "shop/model.py", 'kind="quadratic"', 'kind="square"')
_edit(
    "method that a base calls", "shop/model.py", "return x * self.slope * self.doubled", "return x * self.slope + self.doubled"
)
_edit("registered class that is not asked for", "shop/model.py", "return x * x\n", "return x * x + 0\n")
_edit("member of an enumeration", "shop/enums.py", "HIGH = 10", "HIGH = 11")
_edit("member added to an enumeration", "shop/enums.py", '    B = "b"', '    B = "b"\n    C = "c"')
_edit("unused enumeration", "shop/enums.py", "X = 1", "X = 2")
_edit("unused method of an enumeration", "shop/enums.py", "return -self.value", "return 1 / self.value")
_edit("field of a dataclass", "shop/config.py", "depth: int = 2", "depth: int = 3")
_edit("field added to a dataclass", "shop/config.py", "    depth: int = 2", "    depth: int = 2\n    height: int = 1")
_edit("factory of a field", "shop/config.py", '["a", "b"]', '["a", "c"]')
_edit("unused method of a dataclass", "shop/config.py", "return self.area() * 10", "return self.area() * 20")
_edit("unused dataclass", "shop/config.py", "size: int = 5", "size: int = 6")
_edit("operator of a class", "shop/operators.py", "return Pipe(*self.functions, other)", "return Pipe(other, *self.functions)")
_edit("class found by its base", "shop/shapes.py", "radius = 2", "radius = 3")
_edit(
    "class added below a base",
    "shop/shapes.py",
    "def all_shapes",
    "class Dot(Shape):\n    def area(self):\n        return 0\n\n\ndef all_shapes",
)
_edit(
    "method of a base class that nothing calls",
    "shop/shapes.py",
    "return type(self).__name__\n\n\nclass Square",
    'return "a " + type(self).__name__\n\n\nclass Square',
)

# modules: star imports, getattr, dynamic imports, side effects, conditions
_edit("constant behind a star import", "shop/mathx.py", "BIAS = 0.25", "BIAS = 0.5")
_edit("function behind a star import", "shop/mathx.py", "return x ** 3", "return x ** 5")
_edit("unused function behind a star import", "shop/mathx.py", "return x / 2", "return x / 4")
_edit(
    "a name that starts to hide a builtin",
    "shop/mathx.py",
    '__all__ = ["square",',
    'def map(function, values):\n    return [function(v) + 1 for v in values]\n\n\n__all__ = ["map", "square",',
)
_edit("function that is hidden by __all__", "shop/mathx.py", "def hidden(x):\n    return x", "def hidden(x):\n    return -x")
_edit("function that getattr takes", "shop/activations.py", "return x if x > 0 else LEAK * x", "return x if x > 0 else 0")
_edit(
    "function that getattr could take",
    "shop/activations.py",
    "def identity(x):\n    return x",
    "def identity(x):\n    return +x",
)
_edit("module that is imported by a text", "shop/plugins/alpha.py", "SHIFT = 11", "SHIFT = 12")
_edit("module that could be imported by a text", "shop/plugins/beta.py", "return x * 5", "return x * 6")
_edit(
    "unused function of a module that is imported by a text",
    "shop/plugins/alpha.py",
    "return x - SHIFT",
    "return x - SHIFT - 1",
)
_edit("comment in a module that is imported by a text", "shop/plugins/alpha.py", "SHIFT = 11", "SHIFT = 11  # of all")
_edit("registered step", "shop/steps/scale.py", "BY = 3.0", "BY = 4.0")
_edit("registered step that is not asked for", "shop/steps/rank.py", "key=values.__getitem__)", "key=lambda n: -values[n])")
_edit("name of a registered step", "shop/steps/rank.py", '@register("rank")', '@register("clip")')
_edit("order of registered steps", "shop/registry.py", '["scale", "clip"]', '["clip", "scale"]')
_edit("two values of one statement", "shop/steps/clip.py", "LOW, HIGH = -50.0, 50.0", "LOW, HIGH = -50.0, 25.0")
_edit("module added that a condition waits for", "shop/fast_path.py", "", "def run(n):\n    return -n\n")
_edit("the other branch of a condition", "shop/slow_path.py", "COST = 8", "COST = 9")
_edit(
    "unused function of a conditional import",
    "shop/slow_path.py",
    "def idle(n):\n    return n",
    "def idle(n):\n    return n + 1",
)
_edit("lazy attribute of a module", "shop/late/inner.py", "VALUE = 21", "VALUE = 22")
_edit("lazy attribute that nothing takes", "shop/late/other.py", "return x\n", "return x + 1\n")
_edit("where a lazy attribute is", "shop/late/__init__.py", '"spare": "other"', '"spare": "inner"')
_edit("patch of another module", "shop/monkey.py", "EXTRA = 0.5", "EXTRA = 0.75")
_edit("function that is patched away", "shop/stats.py", "return max(values) - min(values)", "return min(values) - max(values)")
_edit(
    "effect in a package's __init__",
    "shop/__init__.py",
    'NAME = "shop " + VERSION',
    'NAME = "shop " + VERSION\nimport settings\nsettings.LOSS = "absolute"',
)
_edit("constant in a package's __init__ that nothing uses", "shop/__init__.py", '"shop "', '"store "')
_edit("statement that prints", "shop/patterns.py", "SMALL = 10", 'SMALL = 10\nprint("patterns")')
_edit("statement that sets what another module has", "shop/context.py", "START = 1", 'START = 1\nCOUNTS["outer"] = 5')
_edit("global variable", "shop/state.py", "STEP = 2\n", "STEP = 3\n")
_edit("global variable of an unused function", "shop/state.py", "IDLE_STEP = 9", "IDLE_STEP = 8")
_edit("import for types", "shop/typing_only.py", "columns = 3", "columns = 4")
_edit("annotation that is not evaluated", "shop/report.py", "indent: int | None = INDENT", "indent: int = INDENT")
_edit(
    "a module that hides one of the standard library",
    "json.py",
    "",
    "def dumps(*a, **k):\n    return 'mine'\n\n\ndef load(file):\n    return {'value': 0}\n",
)
_edit(
    "statement after the guard",
    "main.py",
    'if __name__ == "__main__":\n    main()',
    'if __name__ == "__main__":\n    main()\n    main()',
)
_edit("module that a subprocess imports", "tools/helper_lib.py", "START = 41", "START = 42")
_edit("unused function of a subprocess", "tools/helper_lib.py", "return 0", "return 1")
_edit("script of a subprocess", "tools/prepare.py", 'PREFIX = "ready"', 'PREFIX = "done"')
_edit("table that is computed and not used", "shop/operators.py", "[n + 1 for n in range(4)]", "[n + 2 for n in range(4)]")
_edit("table that is computed and used", "shop/operators.py", "[n * n for n in range(4)]", "[n * n for n in range(5)]")
_edit("pattern of a match", "shop/patterns.py", "case [first, *rest]", "case [first, *rest] if first > 5")
_edit("guard of a match", "shop/patterns.py", "SMALL = 10", "SMALL = 0")
_edit("context manager", "shop/context.py", "START = 1", "START = 2")
_edit("text of a format", "shop/report.py", '_TEMPLATE = "result: {body}"', '_TEMPLATE = "the result: {body}"')

# data and environment
_edit("data file that a default names", "data/items.csv", "1.5,2", "1.5,3")
_edit("data file by a literal path", "data/weights.json", "0.75", "0.8")
_edit("data file by a pattern", "data/rules/first.json", "3", "6")
_edit("data file that the pattern could mean", "data/rules/third.json", "5", "7")
_edit("data file that an unused function reads", "data/archive.csv", "1,2", "1,3")
_edit("file that nothing reads", "notes.txt", "nothing", "nobody")
_edit("which data files", "shop/textio.py", '["first", "second"]', '["first", "third"]')
_edit("other delimiter", "shop/loading.py", 'DELIMITER = ","', 'DELIMITER = ";" and ","')
MUTATIONS.append(Mutation("environment variable that is read", "SHOP_PRECISION", "", "1", variable=True))
MUTATIONS.append(Mutation("environment variable that chooses a module", "SHOP_PLUGIN", "", "beta", variable=True))
MUTATIONS.append(Mutation("environment variable that nothing reads", "SHOP_COLOUR", "", "red", variable=True))


# written when the work on the first two halves was done, and run once
SEEN = len(MUTATIONS)

_edit("rate of a schedule", "shop/optim.py", "RATE = 0.9", "RATE = 0.8")
_edit("counter of a closure starts elsewhere", "shop/optim.py", "    taken = 0", "    taken = 1")
_edit("docstring added to a class", "shop/model.py", "class Ensemble:\n", 'class Ensemble:\n    """Several models."""\n\n')
_edit(
    "docstring added to a method",
    "shop/model.py",
    "def forward(self, x):\n        return x * x",
    'def forward(self, x):\n        """Squares."""\n        return x * x',
)
_edit("comment behind a decorator", "shop/wrapped.py", "@twice\ndef area", "@twice  # doubles\ndef area")
_edit("local in a wrapper renamed", "shop/decorators.py", "bound = 7 * FACTOR", "bound = 7 * FACTOR  # rows")
_edit(
    "local of a factory of decorators renamed",
    "shop/decorators.py",
    "    bound = 7 * FACTOR\n\n    @functools.wraps(function)\n    def wrapper(values):\n        return function(values[:bound])",  # noqa: E501
    "    most = 7 * FACTOR\n\n    @functools.wraps(function)\n    def wrapper(values):\n        return function(values[:most])",
)
_edit("bound of a wrapper", "shop/decorators.py", "bound = 7 * FACTOR", "bound = 2 * FACTOR")
_edit(
    "import renamed with its uses",
    "shop/features.py",
    "from shop import stats as st\n",
    "from shop import stats as st  # statistics\n",
)
_edit("helper inlined", "shop/half_used.py", "return _inner(x) * TWO", "return min(x, 100) * TWO")
_edit(
    "helper split in two",
    "shop/stats.py",
    "def center(values):\n    middle = mean(values)",
    "def _middle(values):\n    return mean(values)\n\n\ndef center(values):\n    middle = _middle(values)",
)
_edit(
    "unused helper added to a used module",
    "shop/stats.py",
    "def spread(values):",
    "def smallest(values):\n    return min(values)\n\n\ndef spread(values):",
)
_edit("unused constant added", "shop/loading.py", 'DELIMITER = ","', 'DELIMITER = ","\nENCODING = "utf-8"')
_edit(
    "unused class added",
    "shop/enums.py",
    "class Spare(enum.Enum):",
    "class Other(enum.Enum):\n    Y = 2\n\n\nclass Spare(enum.Enum):",
)
_edit(
    "unused method added",
    "shop/model.py",
    "    def __len__(self):",
    "    def first(self):\n        return self.members[0]\n\n    def __len__(self):",
)
_edit("unused method of a plain class changed", "shop/model.py", "return len(self.members)", "return len(self.members) + 1")
_edit("member of an enumeration that is used by its name", "shop/enums.py", "LOW = 1", "LOW = 2")
_edit("value of a mode", "shop/enums.py", 'A = "a"', 'A = "aa"')
_edit("rule of a mode's method", "shop/enums.py", "return self.value * 2", "return self.value * 3")
_edit("field's type", "shop/config.py", "width: int = 8", "width: float = 8")
_edit("field's default that is always given", "shop/config.py", "width: int = 8", "width: int = 9")
_edit("method of a dataclass", "shop/config.py", "return self.width * self.depth", "return self.width + self.depth")
_edit("a key more in the result", "shop/config.py", '"area": config.area()}', '"area": config.area(), "kind": 1}')
_edit(
    "layout of a table",
    "shop/losses.py",
    'LOSSES = {"squared": squared, "absolute": absolute}',
    'LOSSES = {\n    "squared": squared,\n    "absolute": absolute,\n}',
)
_edit("a loss more", "shop/losses.py", '"absolute": absolute}', '"absolute": absolute, "hinge": _hinge}')
_edit(
    "a loss that is not asked for",
    "shop/losses.py",
    "return sum(abs(v) for v in values)",
    "return sum(abs(v) for v in values) + 1",
)
_edit("power of a loss", "shop/losses.py", "POWER = 2", "POWER = 3")
_edit(
    "variable of a generator renamed",
    "shop/losses.py",
    'sum(activations.apply("relu", v) ** POWER for v in values)',
    'sum(activations.apply("relu", one) ** POWER for one in values)',
)
_edit("slope of an activation", "shop/activations.py", "LEAK = 0.1", "LEAK = 0.2")
_edit(
    "docstring in a module that getattr takes from",
    "shop/activations.py",
    "def identity(x):\n",
    'def identity(x):\n    """As it is."""\n',
)
_edit(
    "function added where getattr takes from",
    "shop/activations.py",
    "def identity(x):",
    "def tanh(x):\n    return x\n\n\ndef identity(x):",
)
_edit("a plugin more", "shop/plugins/gamma.py", "", "def transform(x):\n    return 0\n")
_edit("effect of a plugin that is not loaded", "shop/plugins/beta.py", "def transform", "print('beta')\n\n\ndef transform")
_edit("message of an error", "shop/late/__init__.py", "raise AttributeError(name)", "raise AttributeError(name + '?')")
_edit("another lazy value", "shop/lazy.py", "late.deep(2)", "late.deep(3)")
_edit(
    "step that calls another module",
    "shop/steps/scale.py",
    "return [value * BY for value in values]",
    "return [value * BY for value in reversed(values)]",
)
_edit("steps imported in another order", "shop/steps/__init__.py", "import clip, rank, scale", "import scale, rank, clip")
_edit("a step is no longer imported", "shop/steps/__init__.py", "import clip, rank, scale", "import clip, scale")
_edit("an order that leaves one out", "shop/registry.py", '["scale", "clip"]', '["scale"]')
_edit("a list written as a tuple", "shop/registry.py", '["scale", "clip"]', '("scale", "clip")')
_edit("text of the report's keys", "main.py", '"steps_taken"', '"taken"')
_edit("unused import in the entry", "main.py", "import sys\n", "import sys\nimport time\n")
_edit("function of the entry renamed", "main.py", "def debug_main():", "def debug():")
_edit("call order in the entry", "main.py", "    bump()\n    out", "    bump()\n    bump()\n    out")
_edit("blank in a data file", "data/items.csv", "3.0,1", "3.0, 1")
_edit("row more in a data file", "data/items.csv", "10.0,3", "10.0,3\n4,4")
_edit("another key in the weights", "data/weights.json", '"b"', '"c"')
_edit("layout of the weights", "data/weights.json", '{"a": 0.5, ', '{"a":  0.5, ')
_edit("a rule more", "data/rules/fourth.json", "", '{"value": 9}\n')
_edit("a file more that nothing reads", "data/more.csv", "", "a\n")
_edit("a script more that nothing runs", "tools/other.py", "", "print(1)\n")
_edit("comment in a subprocess", "tools/prepare.py", "import helper_lib", "import helper_lib  # beside it")
_edit("value in a subprocess", "tools/helper_lib.py", "return START + 1", "return START + 2")
_edit("a branch that is never taken", "shop/patterns.py", 'return "other"', 'return "something"')
_edit(
    "operator that is never used",
    "shop/operators.py",
    "    def __call__(self, value):",
    "    def __and__(self, other):\n        return self\n\n    def __call__(self, value):",
)
_edit("literal as a sum", "shop/operators.py", "BASE = 100", "BASE = 99 + 1")
_edit("a name of the standard library instead", "shop/operators.py", "_add = operator.add", "_add = operator.sub")
_edit("shape's method that all call", "shop/shapes.py", "return self.side ** 2", "return self.side ** 3")
_edit("shape renamed", "shop/shapes.py", "class Circle(Shape)", "class Disc(Shape)")
_edit("another default of a global", "shop/state.py", "_count = 5", "_count = 6")
_edit("reset that is not called", "shop/state.py", "_count = IDLE_STEP", "_count = IDLE_STEP + 1")
_edit("precision used only here", "shop/rounding.py", "round(value + OFFSET, PRECISION)", "round(value + OFFSET, 1)")
_edit("truncation that nothing uses", "shop/rounding.py", "return int(value * _SCALES", "return int(2 * value * _SCALES")


# written when other ways to write code were made one, and run once. The first twenty are what ruff rewrites by itself: every
# third of its rules (of the families C4 FLY FURB PIE PL RET RUF SIM UP) that fits this project, applied one way or the other
LATER = len(MUTATIONS)

_edit("C400 generator in list()", "shop/features.py", "[square(v) for v in values]", "list(square(v) for v in values)")
_edit(
    "C406 dict() of pairs",
    "shop/losses.py",
    '{"squared": squared, "absolute": absolute}',
    'dict([("squared", squared), ("absolute", absolute)])',
)
_edit("PIE790 placeholder", "shop/shapes.py", "        ...\n", '        """In square metres."""\n        ...\n')
_edit("RET503 implicit return", "shop/state.py", "    _count += STEP\n", "    _count += STEP\n    return None\n")
_edit("SIM208 double negation", "shop/cleaning.py", "if value < LIMIT:", "if not (not value < LIMIT):")
_edit("SIM222 or False", "shop/late/__init__.py", "if name not in _WHERE:", "if name not in _WHERE or False:")
_edit(
    "PLR1736 list index lookup",
    "shop/stats.py",
    "for value in values:\n        total += value",
    "for place, value in enumerate(values):\n        total += values[place]",
)
_edit("PLW1514 encoding", "shop/textio.py", 'open("data/weights.json")', 'open("data/weights.json", encoding="utf-8")')
_edit("UP033 cache", "shop/wrapped.py", "@functools.lru_cache(maxsize=None)", "@functools.cache")
_edit("UP025 unicode prefix", "shop/conditional.py", '"speed"', 'u"speed"')
_edit("UP039 class parentheses", "shop/model.py", "class Ensemble:", "class Ensemble():")
_edit("RUF050 if without effect", "shop/half_used.py", "    limit = 100\n", "    limit = 100\n    if limit:\n        pass\n")
_edit("RUF101 noqa", "shop/wrapped.py", "COUNT = []", "COUNT = []  # noqa: E501")
_edit("C413 list of sorted", "shop/stats.py", "ordered = sorted(values)", "ordered = list(sorted(values))")
_edit("SIM118 in keys", "shop/late/__init__.py", "not in _WHERE:", "not in _WHERE.keys():")
_edit(
    "FLY002 static join",
    "tools/prepare.py",
    'f"{PREFIX} {helper_lib.count()}"',
    '" ".join([PREFIX, str(helper_lib.count())])',
)
_edit("UP018 native literal", "shop/rounding.py", "OFFSET = 0.0", "OFFSET = float(0.0)")
_edit("UP034 parentheses", "main.py", "print(report.render(out))", "print((report.render(out)))")
_edit(
    "FURB154 repeated nonlocal",
    "shop/optim.py",
    "        nonlocal position, taken\n",
    "        nonlocal position\n        nonlocal taken\n",
)
_edit(
    "RUF070 assign before yield",
    "shop/context.py",
    "        yield COUNTS[name]\n",
    "        now = COUNTS[name]\n        yield now\n",
)

_edit(
    "field that is none any more",
    "shop/config.py",
    "    depth: int = 2",
    "    depth: __import__('typing').ClassVar[int] = 2",
)
_edit("field without a type", "shop/config.py", "    depth: int = 2", "    depth = 2")
_edit("annotation that fails", "shop/stats.py", "def mean(values):", "def mean(values: Column):")
_edit(
    "annotation of a type that is hidden", "shop/stats.py", "def mean(values):", "list = None\n\n\ndef mean(values: list[int]):"
)
_edit("renamed at its definition alone", "shop/half_used.py", "def _inner(x):", "def _inside(x):")
_edit("another helper called", "shop/half_used.py", "return _inner(x) * TWO", "return unused_c(x) * TWO")
_edit("another constant taken", "shop/half_used.py", "result = x + ONE", "result = x + TWO")
_edit("return inside of a loop", "shop/mathx.py", "        result += one\n    return", "        result += one\n        return")
_edit("nonlocal forgotten", "shop/optim.py", "        nonlocal position, taken\n", "        nonlocal position\n")
_edit("another exception caught", "shop/conditional.py", "except ImportError:", "except KeyError:")
_edit("names in another order", "shop/textio.py", '["first", "second"]', '["second", "first"]')
_edit("set instead of added to", "shop/state.py", "_count += STEP", "_count = +STEP")
_edit("representation instead of text", "shop/patterns.py", '"text " + text', 'f"text {text!r}"')
_edit("power of a literal", "shop/model.py", "return self.scale * 2", "return self.scale * 2 ** 2")
_edit("another end of a table", "shop/operators.py", "TABLE[-1]", "TABLE[+1]")
_edit(
    "variable of a comprehension unused",
    "shop/features.py",
    "[square(v) for v in values]",
    "[square(values[0]) for v in values]",
)
_edit(
    "local instead of an attribute",
    "shop/model.py",
    "        return x * self.slope * self.doubled",
    "        slope = 1.0\n        return x * slope * self.doubled",
)
_edit("parameters change places", "shop/optim.py", "def make_stepper(rate, start=10.0):", "def make_stepper(start, rate=10.0):")
_edit("something else is yielded", "shop/context.py", "yield COUNTS[name]", "yield START + COUNTS[name]")
_edit(
    "decorator that does nothing any more",
    "shop/decorators.py",
    "        return function(values[:bound])\n    return wrapper",
    "        return function(values[:bound])\n    return function",
)
