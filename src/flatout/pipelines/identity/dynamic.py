"""Code that names what it takes only as it runs: `getattr`, imports by a text, `eval`, registries of modules, pickles."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from flatout.pipelines.identity.folding import HOLE, Texts
from flatout.pipelines.identity.modules import CodeModule
from flatout.pipelines.identity.reach import Reach
from flatout.pipelines.identity.uses import Place, chain_of, uses_of

_ATTRIBUTES = {"getattr", "hasattr", "setattr", "delattr", "inspect.getattr_static"}
_GETTERS = {"operator.attrgetter", "operator.methodcaller"}
_MEMBERS = {"vars", "dir", "inspect.getmembers", "inspect.getmembers_static"}
_CONFIGURED = {"hydra.utils.instantiate", "hydra.utils.get_class", "logging.config.dictConfig", "logging.config.fileConfig"}
_OWN_NAMES = {"fire.Fire", "unittest.main", "doctest.testmod"}  # they look through the module that calls them
_IMPORTS = {
    "importlib.import_module", "__import__", "builtins.__import__", "runpy.run_module", "pkgutil.resolve_name",
    "importlib.util.find_spec", "pydoc.locate", "importlib.__import__",
}  # fmt: skip
_CODE = {"eval", "exec", "compile", "builtins.eval", "builtins.exec"}
_PICKLES = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads", "dill.load",
    "dill.loads", "joblib.load", "pandas.read_pickle", "shelve.open", "marshal.loads", "yaml.unsafe_load",
    "yaml.full_load", "jsonpickle.decode",
}  # fmt: skip
_PLUGINS = {"importlib.metadata.entry_points", "pkg_resources.iter_entry_points", "importlib.util.module_from_spec"}
_SOURCES = {
    "inspect.getsource", "inspect.getsourcelines", "inspect.stack", "inspect.currentframe", "sys._getframe",
    "linecache.getline", "linecache.getlines", "inspect.getcomments",
}  # fmt: skip
_NAMESPACES = ("__globals__", "f_globals", "f_locals")
_SIGNATURES = {"typing.get_type_hints", "inspect.signature", "inspect.get_annotations", "inspect.getfullargspec"}


_FORMAT = re.compile(r"\{[^{}]*\.[^{}]*\}")  # "{0.name}"


def follow_dynamic(reach: Reach, module: CodeModule, places: list[Place]) -> None:
    understood: set[int] = set()  # nodes of `sys.modules` of which one module is taken
    for place in places:
        node = place.node
        if isinstance(node, ast.Call):
            _call(reach, module, place, node)
        elif isinstance(node, ast.Subscript) and _is_modules(reach, module, node.value, place):
            taken = _modules_of(reach, module, place, node)
            if taken is not None:
                understood.add(id(node.value))
                for one in taken:
                    reach.escape(one)
        elif isinstance(node, ast.Attribute):
            _attribute(reach, module, place, node, understood)
        elif isinstance(node, ast.Name) and node.id == "__doc__":
            reach.docstrings = True
        elif isinstance(node, ast.Name) and id(node) not in understood and _is_modules(reach, module, node, place):
            _take_all_modules(reach, f"{module.name}, line {node.lineno}: {node.id}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "{" in node.value:
            for field in _FORMAT.findall(node.value):
                for attribute in re.findall(r"\.(\w+)", field):
                    reach.mention(attribute)
        elif isinstance(node, ast.List | ast.Tuple):
            _command(reach, module, node)


def _call(reach: Reach, module: CodeModule, place: Place, node: ast.Call) -> None:
    name = reach.dotted(module, node.func, place.scopes)
    if name is None:
        return
    where = f"{module.name}, line {node.lineno}"

    def texts(one: ast.AST) -> Texts:
        return reach.about(module).folding.texts(one, place.scopes)

    if name.startswith(("jinja2.", "mako.")):
        reach.say(f"{where}: a template may take any attribute; all methods count")
        reach.mention_pattern(".*")
    elif name in _ATTRIBUTES and len(node.args) > 1:
        _take_attributes(
            reach, module, place, node.args[0], texts(node.args[1]), f"{where}: {name}() takes an attribute by a name"
        )
    elif name in _GETTERS:
        for one in node.args if name == "operator.attrgetter" else node.args[:1]:
            parts = frozenset(part for text in texts(one) for part in text.split("."))
            _take_attributes(reach, module, place, None, parts, f"{where}: {name}() takes an attribute by a name")
    elif name in _MEMBERS and node.args:
        if not _is_instance(node.args[0]):
            _take_attributes(reach, module, place, node.args[0], frozenset({HOLE}), f"{where}: {name}() takes all attributes")
    elif name == "globals" or (name in ("vars", "locals", "dir") and not place.scopes):
        reach.say(f"{where}: {name}() gives all names of {module.name}; all of it counts")
        reach.whole(module)
    elif name in _IMPORTS and node.args:
        package = (
            texts(node.args[1])
            if len(node.args) > 1
            else next((texts(k.value) for k in node.keywords if k.arg == "package"), None)
        )
        _take_modules(reach, module, texts(node.args[0]), package, where)
    elif name in _CODE and node.args:
        _take_code(reach, module, place, texts(node.args[0]), f"{where}: {name}()")
    elif name in _PICKLES or (name in ("torch.load", "numpy.load") and _allows_pickles(node)):
        reach.say(f"{where}: {name}() can name anything in the project; all of the project counts")
        _whole_project(reach)
    elif name in _OWN_NAMES:
        reach.say(f"{where}: {name}() takes what it finds in {module.name}; all of {module.name} counts, and all methods")
        reach.whole(module)
        reach.mention_pattern(".*")
    elif name in _PLUGINS | _CONFIGURED:
        reach.say(f"{where}: {name}() runs code that is found as it runs; all of the project counts")
        _whole_project(reach)
    elif name in _SOURCES:
        reach.say(f"{where}: {name}() reads source code; comments and lines count")
        reach.raw_sources = True
    elif name in _SIGNATURES:
        reach.annotations = True
    elif name in ("inspect.getdoc", "pydoc.render_doc", "pydoc.getdoc"):
        reach.docstrings = True


def _attribute(reach: Reach, module: CodeModule, place: Place, node: ast.Attribute, understood: set[int]) -> None:
    where = f"{module.name}, line {node.lineno}"
    if node.attr == "__doc__":
        reach.docstrings = True
    elif node.attr in ("__annotations__", "__signature__"):
        reach.annotations = True
    elif node.attr == "__subclasses__":
        root, attributes = chain_of(node.value)
        is_local = not isinstance(root, ast.Name) or any(root.id in scope.kinds for scope in place.scopes)
        targets = reach.targets(module, root.id, attributes) if isinstance(root, ast.Name) and not is_local else []
        reach.classes_below(
            [(inner, item) for inner, item in targets if item is not None and isinstance(item.node, ast.ClassDef)]
        )
    elif node.attr in ("f_lineno", "co_firstlineno", "tb_lineno"):
        reach.say(f"{where}: {node.attr} is a line's number; comments and lines count")
        reach.raw_sources = True
    elif node.attr == "__dict__" and not _is_instance(node.value):
        _take_attributes(reach, module, place, node.value, frozenset({HOLE}), f"{where}: __dict__ gives all attributes")
    elif id(node) not in understood and (node.attr in _NAMESPACES or _is_modules(reach, module, node, place)):
        _take_all_modules(reach, f"{where}: {node.attr}")


def _take_all_modules(reach: Reach, what: str) -> None:
    reach.say(f"{what} gives names of modules that are known only as it runs; all modules that run count")
    for inner in list(reach.modules):
        reach.whole(inner)
    reach.when_run(reach.whole)


def _is_modules(reach: Reach, module: CodeModule, node: ast.AST, place: Place) -> bool:
    return reach.dotted(module, node, place.scopes) == "sys.modules"


def _modules_of(reach: Reach, module: CodeModule, place: Place, node: ast.AST) -> list[CodeModule] | None:
    """The modules that an expression can stand for, if that is known: a name, `sys.modules[...]`, `import_module(...)`."""
    if isinstance(node, ast.Name | ast.Attribute):
        root, attributes = chain_of(node)
        if not isinstance(root, ast.Name) or any(root.id in scope.kinds for scope in place.scopes):
            return None
        targets = reach.targets(module, root.id, attributes)
        return [inner for inner, _ in targets] if targets and all(item is None for _, item in targets) else None
    text: ast.AST | None = None
    if isinstance(node, ast.Subscript) and _is_modules(reach, module, node.value, place):
        text = node.slice
    elif (
        isinstance(node, ast.Call) and reach.dotted(module, node.func, place.scopes) == "importlib.import_module" and node.args
    ):
        text = node.args[0]
    if text is None:
        return None
    names = reach.about(module).folding.texts(text, place.scopes)
    if HOLE in names or any(name.startswith(".") for name in names):
        return None
    patterns = [re.compile(_regex(name)) for name in names]
    if module.is_main and "__main__" in names:
        return [module]
    known = names | {one for one in reach.files.all_modules() if any(pattern.fullmatch(one) for pattern in patterns)}
    found = [reach.files.find(one) for one in known if HOLE not in one]
    return [module if module.name == one.name else reach.files.module(one) for one in found if one is not None]


def _is_instance(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _take_attributes(reach: Reach, module: CodeModule, place: Place, receiver: ast.AST | None, names: Texts, what: str) -> None:
    """Attributes of some object by texts. A name that isn't known means all of a module, or all methods."""
    known = [name for name in names if HOLE not in name]
    for name in known:
        reach.mention(name)
    unknown = [name for name in names if HOLE in name]
    if receiver is not None and reach.dotted(module, receiver, place.scopes) is not None:
        return  # of a library
    modules = None if receiver is None else _modules_of(reach, module, place, receiver)
    for inner in modules or ():
        reach.escape(inner)
    for pattern in unknown:
        if modules is not None and pattern == HOLE:
            for inner in modules:
                reach.say(f"{what} that is known only as it runs; all of {inner.name} counts")
                reach.whole(inner)
        elif modules is None:
            shown = "any" if pattern == HOLE else pattern.replace(HOLE, "*")
            reach.say(f"{what} that is known only as it runs ({shown}); all methods of that name count")
            reach.mention_pattern(_regex(pattern))
        else:
            for inner in modules:
                reach.use_matching(inner, re.compile(_regex(pattern)))


def _take_modules(reach: Reach, module: CodeModule, names: Texts, package: Texts | None, where: str) -> None:
    for text in names:
        name, _, attribute = text.partition(":")
        if name.startswith("."):
            above = next(iter(package)) if package is not None and len(package) == 1 else module.package
            dots = len(name) - len(name.lstrip("."))
            parts = above.split(".")
            name = ".".join([*parts[: len(parts) - dots + 1], *([name.lstrip(".")] if name.lstrip(".") else [])])
        if HOLE not in name:
            reach.import_name(name)
            _escape_named(reach, name)
            if attribute:
                reach.mention(attribute)
            continue
        pattern = re.compile(_regex(name))
        taken = [one for one in reach.files.all_modules() if pattern.fullmatch(one)]
        shown = name.replace(HOLE, "*")
        count = f"all {len(taken)} modules" if name == HOLE else f"all {len(taken)} modules {shown}"
        reach.say(f"{where}: imports a module by a name that is known only as it runs; {count} of the project count")
        for one in taken:
            reach.import_name(one, whole=True)
            _escape_named(reach, one)


def _escape_named(reach: Reach, name: str) -> None:
    found = reach.files.find(name)
    if found is not None:
        reach.escape(reach.files.module(found))


def _take_code(reach: Reach, module: CodeModule, place: Place, texts: Texts, what: str) -> None:
    for text in texts:
        if HOLE not in text:
            try:
                found = uses_of([ast.parse(text.strip())])
            except (SyntaxError, ValueError):
                continue
            for chain, _ in found.chains:
                reach.use(module, chain)
            for name in found.attributes:
                reach.mention(name)
        else:
            reach.say(f"{what} runs a text that is known only as it runs; all of {module.name} counts, and all methods")
            reach.whole(module)
            reach.mention_pattern(".*")


def _command(reach: Reach, module: CodeModule, node: ast.List | ast.Tuple) -> None:
    """["python", "-m", "tools.prepare"]"""
    texts = [one.value if isinstance(one, ast.Constant) and isinstance(one.value, str) else "" for one in node.elts]
    for option, name in pairwise(texts):
        if option == "-m" and (found := reach.files.find(name)) is not None:
            main = reach.files.find(f"{name}.__main__") if found.folder is not None else found
            if main is not None and main.path is not None:
                reach.import_name(name)
                reach.execute(reach.files.script(main.path, main.name))


def _allows_pickles(node: ast.Call) -> bool:
    given = {one.arg: one.value for one in node.keywords}
    allows, forbids = given.get("allow_pickle"), given.get("weights_only")
    return (allows is not None and not _is(allows, False)) or (forbids is not None and not _is(forbids, True))


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _whole_project(reach: Reach) -> None:
    for name in reach.files.all_modules():
        reach.import_name(name, whole=True)


def _regex(text: str) -> str:
    return ".*".join(map(re.escape, text.split(HOLE)))
