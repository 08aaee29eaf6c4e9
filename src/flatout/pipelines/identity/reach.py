"""Everything of a project that an entry can reach, found by reading its code. Nothing is imported and nothing runs.

A module that is imported runs: its statements count unless they only set names. A function or a class counts when code that
counts names it. A method of such a class counts when code that counts takes an attribute of its name from anything. Where code
takes what can't be known, all of it counts: the module, or all methods, and `fallbacks` says so.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flatout.pipelines.identity.classes import ClassCode, Member, class_code
from flatout.pipelines.identity.folding import UNKNOWN, Folding, Texts
from flatout.pipelines.identity.harmless import Harmlessness, is_of_python, is_plain_base
from flatout.pipelines.identity.modules import CodeModule, Item
from flatout.pipelines.identity.project import CodeFiles, FoundModule
from flatout.pipelines.identity.quiet import returns_only
from flatout.pipelines.identity.scopes import LocalImport, LocalNames
from flatout.pipelines.identity.uses import NameChain, Place, Uses, chain_of, uses_of

_NO_FIELDS = {"object", "abc.ABC", "typing.Generic", "typing.Protocol", "Exception", "ValueError", "RuntimeError"}
Special = Callable[["Reach", CodeModule, list[Place]], None]  # what code does besides naming things


@dataclass(eq=False)
class ReachedModule:
    """`items`: those that count, by number; `members`: of classes among them. `whole`: all of it counts."""

    module: CodeModule
    folding: Folding
    harmless: Harmlessness
    items: set[int] = field(default_factory=set)
    classes: dict[int, ClassCode] = field(default_factory=dict)
    members: dict[int, set[int]] = field(default_factory=dict)
    effects: set[int] = field(default_factory=set)
    whole: bool = False


class Reach:
    def __init__(self, files: CodeFiles, environment: Mapping[str, str], specials: Iterable[Special]) -> None:
        self.files, self.environment = files, environment
        self.modules: dict[CodeModule, ReachedModule] = {}
        self.libraries: set[str] = set()
        self.fallbacks: dict[str, None] = {}  # in order, each once
        self.read_files: set[str] = set()
        self.variables: set[str] = set()
        self.variable_patterns: set[str] = set()
        self.raw_sources = self.docstrings = self.annotations = False
        self._specials = tuple(specials)
        self._todo: deque[Callable[[], None]] = deque()
        self._mentioned: set[str] = set()
        self._patterns: list[re.Pattern[str]] = []
        self._having: dict[str, list[tuple[ReachedModule, ClassCode]]] = {}  # classes by names of members
        self._escaped: set[CodeModule] = set()
        self._used: set[tuple[CodeModule, str, tuple[str, ...]]] = set()
        self._classes_below: set[tuple[CodeModule, int]] = set()
        self._every_class = False
        self._when_run: list[Callable[[CodeModule], None]] = []
        self._dotted: dict[tuple[CodeModule, ast.AST], str | None] = {}
        self.taken_by_name: set[Item] = set()  # through an attribute of something, not by the name itself
        self.handed_on: set[tuple[CodeModule, Item]] = set()  # functions that are named without being called
        self.named_elsewhere: set[tuple[CodeModule, str]] = set()  # names of a module that not only its own code names
        self.not_just_called: set[tuple[CodeModule, str]] = set()
        self.called_by_keyword: set[tuple[CodeModule, str]] = set()
        self._known_ends: dict[tuple[CodeModule, str, tuple[str, ...]], list[tuple[CodeModule, Item]]] = {}
        self._naming: set[tuple[CodeModule, str]] = set()
        self._asking: set[tuple[CodeModule, str]] = set()

    # --- what specials and the verb ask for

    def run(self) -> None:
        while self._todo:
            self._todo.popleft()()

    def say(self, sentence: str) -> None:
        self.fallbacks[sentence] = None

    def script(self, module: CodeModule) -> None:
        """A script, or a module that runs as one."""
        if module.path is not None:
            self.files.add_place(module.path.parent)
        self.execute(module)

    def execute(self, module: CodeModule) -> ReachedModule:
        """Its statements run, once."""
        if module in self.modules:
            return self.modules[module]
        reached = self.modules[module] = self._reached(module)
        if module.path in self.files.damaged:
            self.say(f"{module.name}: {self.files.damaged[module.path]}; all of the file counts")
        self._todo.append(lambda: self._run_statements(reached))
        for then in self._when_run:
            then(module)
        return reached

    def whole(self, module: CodeModule) -> None:
        """All that is in a module counts."""
        reached = self.execute(module)
        if not reached.whole:
            reached.whole = True
            for item in module.items:
                self._live(reached, item)
                for one in (one for found in item.imports.values() for one in found):
                    self._use_import(module, one, ())
            for code in list(reached.classes.values()):
                self._live_members(reached, code)

    def import_name(self, name: str, *, whole: bool = False) -> bool:
        """Run a module and the packages that it is in; False if it is not of the project."""
        parts = name.split(".")
        if self.files.find(parts[0]) is None and parts[0] and not is_of_python(parts[0]):
            found = self.files.look_elsewhere(parts[0])
            if found:
                self.say(found)
        modules = [self._module(".".join(parts[: n + 1])) for n in range(len(parts))]
        if modules[0] is None:
            if parts[0] and not is_of_python(parts[0]):
                self.libraries.add(parts[0])
            return False
        for module in modules:
            if module is not None:
                self.execute(module)
        if whole and modules[-1] is not None:
            self.whole(modules[-1])
        return True

    def mention(self, name: str) -> None:
        """Some object's attribute of that name is taken."""
        if name in self._mentioned:
            return
        self._mentioned.add(name)
        for reached, code in self._having.pop(name, []):
            self._live_members(reached, code)
        for module in list(self._escaped):
            if module.stars or name in module.by_name:
                self.use(module, NameChain(name, ()), only_bound=True)

    def is_mentioned(self, name: str) -> bool:
        return name in self._mentioned or any(pattern.fullmatch(name) for pattern in self._patterns)

    def mention_pattern(self, pattern: str) -> None:
        """Any attribute whose name matches."""
        compiled = re.compile(pattern)
        if all(one.pattern != pattern for one in self._patterns):
            self._patterns.append(compiled)
            for reached in list(self.modules.values()):
                for code in list(reached.classes.values()):
                    self._live_members(reached, code)
            for module in list(self._escaped):
                self._use_matching(module)

    def escape(self, module: CodeModule) -> None:
        """The module itself is handed on: whatever has one of its names as an attribute may mean it."""
        self.execute(module)
        if module not in self._escaped:
            self._escaped.add(module)
            for name in list(self._mentioned) if module.stars else [one for one in module.by_name if one in self._mentioned]:
                self.use(module, NameChain(name, ()), only_bound=True)
            self._use_matching(module)

    def when_run(self, then: Callable[[CodeModule], None]) -> None:
        """For every module that runs later."""
        self._when_run.append(then)

    def classes_below(self, bases: list[tuple[CodeModule, Item]]) -> None:
        """Code looks for classes by what they inherit from; without bases, from anything."""
        self._every_class = self._every_class or not bases
        self._classes_below |= {(module, item.index) for module, item in bases}
        for reached in list(self.modules.values()):
            self._live_classes(reached)

    # --- names

    def dotted(self, module: CodeModule, node: ast.AST, scopes: tuple[LocalNames, ...] = ()) -> str | None:
        """The full name of what an expression refers to outside of the project: "os.path.join", "print"."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        if (module, node) not in self._dotted:
            self._dotted[module, node] = self._full_name(module, node, scopes)
        return self._dotted[module, node]

    def _full_name(self, module: CodeModule, node: ast.AST, scopes: tuple[LocalNames, ...]) -> str | None:
        root, attributes = chain_of(node)
        if not isinstance(root, ast.Name):
            return None
        local = next((scope for scope in reversed(scopes) if root.id in scope.kinds), None)
        if local is not None:
            imports = local.imports.get(root.id, [])
        elif items := module.by_name.get(root.id):
            imports = [one for item in items for one in item.imports.get(root.id, ())]
            if any(root.id not in item.imports for item in items):
                return None
        elif root.id in vars(builtins) and not any(self._star_modules(module, root.id)):
            return ".".join([root.id, *attributes])
        else:
            names = {
                name for star in module.stars if isinstance(star.node, ast.ImportFrom) for name in [module.absolute(star.node)]
            }
            outside = [name for name in names if self.files.find(name) is None]
            return ".".join([outside[0], root.id, *attributes]) if len(outside) == 1 and root.id not in module.by_name else None
        found = {self._outside_name(module, one) for one in imports}
        name = found.pop() if len(found) == 1 else None
        return None if name is None else ".".join([name, *attributes])

    def _outside_name(self, module: CodeModule, one: LocalImport) -> str | None:
        node, alias = one
        name = module.absolute(node) if isinstance(node, ast.ImportFrom) else alias.name
        if self.files.find(name.partition(".")[0]) is not None:
            return None
        if isinstance(node, ast.ImportFrom):
            return f"{name}.{alias.name}"
        return alias.name if alias.asname else name.partition(".")[0]

    def targets(self, module: CodeModule, root: str, attributes: tuple[str, ...]) -> list[tuple[CodeModule, Item | None]]:
        """What a chain stands for in the project: statements that define it, or (None) a module itself."""
        found: list[tuple[CodeModule, Item | None]] = []
        self._targets(module, root, attributes, found, set())
        return found

    def _ends(self, module: CodeModule, chain: NameChain) -> list[tuple[CodeModule, Item]]:
        """The functions that a chain may stand for."""
        key = module, chain.root, chain.attributes
        if chain.imported is None and key not in self._known_ends:
            found = self.targets(module, chain.root, chain.attributes)
            self._known_ends[key] = [
                (inner, item)
                for inner, item in found
                if item is not None and isinstance(item.node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
        return self._known_ends.get(key, [])

    def _targets(
        self, module: CodeModule, root: str, attributes: tuple[str, ...],
        found: list[tuple[CodeModule, Item | None]], seen: set[tuple[CodeModule, str, tuple[str, ...]]],
    ) -> None:  # fmt: skip
        if (module, root, attributes) in seen:
            return
        seen.add((module, root, attributes))
        for item in module.by_name.get(root, ()):
            for one in item.imports.get(root, ()):
                for inner, name, rest in self._imported(module, one, attributes):
                    if name is None:
                        found.append((inner, None))
                    else:
                        self._targets(inner, name, rest, found, seen)
            if not attributes and item.alias is None:
                found.append((module, item))
        for star in self._star_modules(module, root):
            self._targets(star, root, attributes, found, seen)

    def _imported(
        self, module: CodeModule, one: LocalImport, attributes: tuple[str, ...]
    ) -> Iterable[tuple[CodeModule, str | None, tuple[str, ...]]]:
        """The module of the project that an import leads to, the name in it, and the attributes that remain."""
        node, alias = one
        if isinstance(node, ast.ImportFrom):
            name, rest = module.absolute(node), (alias.name, *attributes)
        elif alias.asname:
            name, rest = alias.name, attributes
        else:
            name, rest = alias.name.partition(".")[0], attributes
        inner = self._module(name)
        while inner is not None:
            if not rest:
                yield inner, None, ()
                return
            below = self._module(f"{name}.{rest[0]}")
            if rest[0] in inner.by_name or any(self._star_modules(inner, rest[0])) or below is None:
                yield inner, rest[0], rest[1:]
            name, inner, rest = f"{name}.{rest[0]}", below, rest[1:]

    def _star_modules(self, module: CodeModule, name: str) -> Iterable[CodeModule]:
        """Modules with this name of which `module` imports everything."""
        for inner in self._all_stars(module, set()):
            if name in inner.by_name or (inner.is_package and self.files.find(f"{inner.name}.{name}") is not None):
                yield inner

    def star_sources(self) -> set[CodeModule]:
        """Modules of which others import everything."""
        return {inner for module in self.modules for inner in self._all_stars(module, set())}

    def _all_stars(self, module: CodeModule, seen: set[CodeModule]) -> Iterable[CodeModule]:
        for star in module.stars:
            inner = self._module(module.absolute(star.node)) if isinstance(star.node, ast.ImportFrom) else None
            if inner is not None and inner not in seen:
                seen.add(inner)
                yield inner
                yield from self._all_stars(inner, seen)

    def _module(self, name: str) -> CodeModule | None:
        found: FoundModule | None = self.files.find(name)
        return None if found is None else self.files.module(found)

    # --- what counts

    def use(self, module: CodeModule, chain: NameChain, only_bound: bool = False, by_itself: bool = False) -> None:
        """This counts. `by_itself`: code of `module` names it."""
        if chain.imported is not None:
            self._use_import(module, chain.imported, chain.attributes)
            return
        if not by_itself:
            self.named_elsewhere.add((module, chain.root))
        key = module, chain.root, chain.attributes
        if key in self._used:
            return
        self._used.add(key)
        items = module.by_name.get(chain.root, ())
        for item in items:
            if only_bound and item not in self.taken_by_name:  # a path that it holds is read where that can't be seen
                self.taken_by_name.add(item)
                self.execute(module).items.discard(item.index)
            self._live(self.execute(module), item)
            for one in item.imports.get(chain.root, ()):
                self._use_import(module, one, chain.attributes)
            if item.alias is None:
                for name in chain.attributes:
                    self.mention(name)
        for star in self._star_modules(module, chain.root):
            self._use_in(star, chain.root, chain.attributes)
            for item in module.stars:
                self._live(self.execute(module), item)
            self._use_in(star, "__all__", ())
        if not items and not only_bound:
            for name in chain.attributes:
                self.mention(name)

    def _use_import(self, module: CodeModule, one: LocalImport, attributes: tuple[str, ...]) -> None:
        if isinstance(one[0], ast.ImportFrom) and self._outside_name(module, one) is not None:
            for name in attributes:  # an object of a library, which may hand on what the project defines
                self.mention(name)
        for inner, own, rest in self._imported(module, one, attributes):
            self.import_name(inner.name)
            if own is None:
                self.escape(inner)
            else:
                self._use_in(inner, own, rest)

    def _use_in(self, module: CodeModule, name: str, rest: tuple[str, ...]) -> None:
        self.execute(module)
        if name not in module.by_name and not any(self._star_modules(module, name)):
            for one in rest:
                self.mention(one)
            if "__getattr__" in module.by_name:
                self.use(module, NameChain("__getattr__", ()))
            below = self._module(f"{module.name}.{name}") if module.is_package else None
            if below is not None and rest:
                self._use_in(below, rest[0], rest[1:])
            elif below is not None:
                self.escape(below)
        self.use(module, NameChain(name, rest))

    def use_matching(self, module: CodeModule, pattern: re.Pattern[str]) -> None:
        """Names of a module that match."""
        for name in [*module.by_name, *(name for star in self._all_stars(module, set()) for name in star.by_name)]:
            if pattern.fullmatch(name):
                self.use(module, NameChain(name, ()))

    def _use_matching(self, module: CodeModule) -> None:
        for pattern in self._patterns:
            self.use_matching(module, pattern)

    def _run_statements(self, reached: ReachedModule) -> None:
        module = reached.module
        for item in module.items:
            if isinstance(item.node, ast.Expr) and "sys.path" in ast.unparse(item.node):  # where the imports below it look
                reached.items.add(item.index)
                self._follow(reached, item)
        for item in module.items:
            if not reached.harmless.statement(item.node):
                reached.effects.add(item.index)
                self._live(reached, item)
                if reached.harmless.hands_on(item.node):
                    name = "/".join(item.names)
                    self.say(
                        f"{module.name}, line {item.node.lineno}: {name} is handed on when the module runs, by a decorator or "
                        f"a base class; {module.name}: {name} counts whoever takes it"
                    )
            else:  # what it imports is run all the same
                self._import_all(module, uses_of([item.node], bodies=False).imports)
        self._live_classes(reached)

    def _import_all(self, module: CodeModule, imports: Iterable[LocalImport]) -> None:
        for node, alias in imports:
            if isinstance(node, ast.ImportFrom):
                name = module.absolute(node)
                if self.import_name(name):
                    for below in self._listed(name) if alias.name == "*" else [alias.name]:
                        if self.files.find(f"{name}.{below}") is not None:
                            self.import_name(f"{name}.{below}")
            else:
                self.import_name(alias.name)

    def _listed(self, name: str) -> list[str]:
        """The texts in `__all__` of a module."""
        module = self._module(name)
        items = () if module is None else module.by_name.get("__all__", ())
        texts = (node.value for item in items for node in ast.walk(item.node) if isinstance(node, ast.Constant))
        return [text for text in texts if isinstance(text, str)]

    def _live(self, reached: ReachedModule, item: Item) -> None:
        if item.index in reached.items:
            return
        reached.items.add(item.index)
        self._todo.append(lambda: self._follow(reached, item))

    def _follow(self, reached: ReachedModule, item: Item) -> None:
        node = item.node
        if isinstance(node, ast.ClassDef):
            code = reached.classes[item.index] = class_code(
                reached.module,
                item,
                reached.harmless,
                has_open_base=self._has_open_base(reached.module, node),
                attributes_are_read=self._reads_attributes(reached.module, item),
            )
            reached.members[item.index] = set()
            for name in {name for member in code.members for name in member.names}:
                self._having.setdefault(name, []).append((reached, code))
            self._take(reached, uses_of(code.header))
            self._live_members(reached, code)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import_all(reached.module, [(node, alias) for alias in node.names])
        else:
            self._take(reached, uses_of([node]))

    def _live_members(self, reached: ReachedModule, code: ClassCode) -> None:
        live = reached.members[code.item.index]
        for member in code.members:
            if member.index not in live and (reached.whole or member.always or self._is_mentioned(member)):
                live.add(member.index)
                self._todo.append(lambda member=member: self._follow_member(reached, member))  # type: ignore[misc]

    def _follow_member(self, reached: ReachedModule, member: Member) -> None:
        uses = uses_of([member.node])
        self._take(reached, uses)
        for chain, _ in uses_of([member.node], bodies=False).chains:
            self.mention(chain.root)  # a name of the class itself
        if isinstance(member.node, ast.ClassDef):
            for name in (one for inner in ast.walk(member.node) if isinstance(inner, ast.stmt) for one in _set_by(inner)):
                self.mention(name)

    def _is_mentioned(self, member: Member) -> bool:
        return any(map(self.is_mentioned, member.names))

    def _live_classes(self, reached: ReachedModule) -> None:
        if not self._every_class and not self._classes_below:
            return
        for item in reached.module.items:
            if isinstance(item.node, ast.ClassDef) and (self._every_class or self._is_below(reached.module, item)):
                self._live(reached, item)

    def _is_below(self, module: CodeModule, item: Item, depth: int = 0) -> bool:
        if (module, item.index) in self._classes_below:
            return True
        return depth < 20 and any(self._is_below(inner, base, depth + 1) for inner, base in self._bases(module, item))

    def _bases(self, module: CodeModule, item: Item) -> list[tuple[CodeModule, Item]]:
        """Classes of the project that a class inherits from."""
        found: list[tuple[CodeModule, Item]] = []
        for base in item.node.bases if isinstance(item.node, ast.ClassDef) else []:
            root, attributes = chain_of(base.value if isinstance(base, ast.Subscript) else base)
            targets = self.targets(module, root.id, attributes) if isinstance(root, ast.Name) else []
            found += [(inner, one) for inner, one in targets if one is not None and isinstance(one.node, ast.ClassDef)]
        return found

    def _take(self, reached: ReachedModule, uses: Uses) -> None:
        module = reached.module
        self._import_all(module, uses.imports)
        for chain, node in uses.chains:
            self.use(module, chain, by_itself=True)
            call = uses.called.get(id(node))
            if call is None or chain.attributes:
                self.not_just_called.add((module, chain.root))
            elif call.keywords:
                self.called_by_keyword.add((module, chain.root))
            if call is None:
                self.handed_on.update((inner, item) for inner, item in self._ends(module, chain))
        for name in uses.attributes:
            self.mention(name)
        for special in self._specials:
            special(self, module, uses.places)

    # --- what is known of a module's names

    def _reached(self, module: CodeModule) -> ReachedModule:
        folding = Folding(
            module.path,
            self.files.root,
            module.package if module.is_package else module.name,
            self.environment,
            lambda node: self._full_name(module, node, ()),
            lambda root, attributes, depth: self._named(module, root, attributes, depth),
        )
        harmless = Harmlessness(
            lambda node: self._full_name(module, node, ()),
            lambda node: self._is_quiet_decorator(module, node),
            lambda node: self._is_quiet_base(module, node),
            lambda name: self._is_plain_value(module, name),
        )
        return ReachedModule(module, folding, harmless)

    def about(self, module: CodeModule) -> ReachedModule:
        """Of a module that may not have run."""
        return self.modules.get(module) or self._reached(module)

    def _named(self, module: CodeModule, root: str, attributes: tuple[str, ...], depth: int) -> Texts:
        if (module, root) in self._naming:
            return UNKNOWN  # a text that grows by itself
        self._naming.add((module, root))
        try:
            return self._named_texts(module, root, attributes, depth)
        finally:
            self._naming.discard((module, root))

    def _named_texts(self, module: CodeModule, root: str, attributes: tuple[str, ...], depth: int) -> Texts:
        found: set[str] = set()
        for inner, item in self.targets(module, root, attributes):
            node = None if item is None else item.node
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if value is None or (isinstance(node, ast.Assign) and not all(isinstance(one, ast.Name) for one in node.targets)):
                return UNKNOWN
            found |= self.about(inner).folding.texts(value, (), depth)
        return frozenset(found) or UNKNOWN

    def _is_plain_value(self, module: CodeModule, name: str) -> bool:
        """Operators on it are Python's own, or a library's."""
        if (module, name) in self._asking:
            return False
        self._asking.add((module, name))
        try:
            return self._has_plain_targets(module, name)
        finally:
            self._asking.discard((module, name))

    def _has_plain_targets(self, module: CodeModule, name: str) -> bool:
        for inner, item in self.targets(module, name, ()):
            if item is None or not isinstance(item.node, ast.Assign | ast.AnnAssign):
                return False
            if inner is not module and not self.about(inner).harmless.statement(item.node):
                return False
            if inner is module and item.node.value is not None and _calls_own(item.node.value, self, module):
                return False
        return True

    def _is_quiet_decorator(self, module: CodeModule, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else node
        root, attributes = chain_of(called)
        if not isinstance(root, ast.Name):
            return False
        targets = self.targets(module, root.id, attributes)
        return bool(targets) and all(
            item is not None and isinstance(item.node, ast.FunctionDef)
            and returns_only(item.node, isinstance(node, ast.Call), lambda one, inner=inner: self._full_name(inner, one, ()))  # type: ignore[misc]
            for inner, item in targets
        )  # fmt: skip

    def _is_quiet_base(self, module: CodeModule, node: ast.AST, depth: int = 0) -> bool:
        root, attributes = chain_of(node)
        targets = self.targets(module, root.id, attributes) if isinstance(root, ast.Name) and depth < 20 else []
        for inner, item in targets:
            if item is None or not isinstance(item.node, ast.ClassDef):
                return False
            if any("__init_subclass__" in _set_by(one) for one in item.node.body) or not self.about(inner).harmless.statement(
                item.node
            ):
                return False
            if any(keyword.arg == "metaclass" and self.dotted(inner, keyword.value) is None for keyword in item.node.keywords):
                return False
        return bool(targets)

    def _reads_attributes(self, module: CodeModule, item: Item, depth: int = 0) -> bool:
        """Something makes fields or members of a class's attributes: a dataclass, an enumeration, a library."""
        node = item.node
        if not isinstance(node, ast.ClassDef) or node.decorator_list or depth > 20:
            return True
        names = [self.dotted(module, base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
        own = self._bases(module, item)
        if any(name not in _NO_FIELDS for name in names if name is not None) or len(own) < names.count(None):
            return True
        return any(not inner.node.decorator_list and self._reads_attributes(at, inner, depth + 1)  # type: ignore[attr-defined]
                   for at, inner in own)  # fmt: skip

    def _has_open_base(self, module: CodeModule, node: ast.ClassDef, depth: int = 0) -> bool:
        """Something calls or reads members by names that can't be seen: a library's class, a metaclass, a decorator."""
        if depth > 20 or any(
            one.arg == "metaclass" and self.dotted(module, one.value) != "abc.ABCMeta" for one in node.keywords
        ):
            return True
        for one in node.decorator_list:
            name = self.dotted(module, one.func if isinstance(one, ast.Call) else one)
            if name is None or not is_of_python(name):
                return True
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            name = self.dotted(module, plain)
            if name is not None:
                if not is_plain_base(name):
                    return True
                continue
            root, attributes = chain_of(plain)
            targets = self.targets(module, root.id, attributes) if isinstance(root, ast.Name) else []
            if not targets and not isinstance(plain, ast.Call):
                return True
            for inner, item in targets:
                if item is None or not isinstance(item.node, ast.ClassDef) or self._has_open_base(inner, item.node, depth + 1):
                    return True
        return False


def _calls_own(node: ast.expr, reach: Reach, module: CodeModule) -> bool:
    """Whether a value is made by a call of what the project defines."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(reach.dotted(module, one.func) is None and not isinstance(one.func, ast.Attribute) for one in calls)


def _set_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [one.id for one in node.targets if isinstance(one, ast.Name)]
    return []
