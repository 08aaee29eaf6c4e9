"""Files that code reads by paths that can be worked out: their content counts. What is not known of a path is a pattern."""

from __future__ import annotations

import ast
import os.path
import re
from pathlib import Path

from flatout.pipelines.identity.folding import HOLE, UNKNOWN, Texts
from flatout.pipelines.identity.modules import CodeModule
from flatout.pipelines.identity.reach import Reach
from flatout.pipelines.identity.scopes import LocalNames
from flatout.pipelines.identity.uses import Place

_LONGEST = 1000
_OPENS = {"open", "io.open", "gzip.open", "bz2.open", "lzma.open", "codecs.open", "zipfile.ZipFile", "tarfile.open"}
_LISTS = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "pathlib.Path", "pathlib.PurePath"}
_WRITES = {"os.makedirs", "os.mkdir", "os.remove", "os.unlink", "os.rmdir", "shutil.rmtree", "os.chmod", "os.utime"}
_WRITES_SECOND = {"shutil.copy", "shutil.copyfile", "shutil.copy2", "shutil.copytree", "shutil.move", "os.rename", "os.replace"}
_WRITING_METHODS = {
    "write_text", "write_bytes", "mkdir", "touch", "unlink", "rmdir", "to_csv", "to_parquet", "to_json", "to_pickle",
    "to_excel", "to_feather", "savefig", "save_pretrained", "save", "savez", "savez_compressed", "savetxt",
    "save_file", "dump", "imsave", "write_parquet", "write_csv", "write_table", "FileHandler", "write_image", "chmod",
}  # fmt: skip
_NO_FOLDERS = ("/", "/tmp", "/dev", "/proc", "/sys", "/home", "/usr", "/etc", "/root")
_NO_PLACES = ("/dev/", "/proc/", "/sys/")
_HAS_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9_]{0,9}$")


def follow_reads(reach: Reach, module: CodeModule, places: list[Place]) -> None:
    _Reader(reach, module, places).follow()


class _Reader:
    def __init__(self, reach: Reach, module: CodeModule, places: list[Place]) -> None:
        self._reach, self._module, self._places = reach, module, places
        self._folding = reach.about(module).folding
        self._done: set[int] = set()  # nodes that are part of a longer path, or name what is written
        self._listed: set[int] = set()  # texts that are folders for sure
        self._no_folders: set[int] = set()  # texts that are no folders, though a folder may have that name

    def follow(self) -> None:
        for place in self._places:  # outer nodes come before their parts
            node, scopes = place.node, place.scopes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                self._done.add(id(node.value))  # a docstring
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self._assigned(node, scopes)
            elif isinstance(node, ast.Subscript):
                self._no_folders.add(id(node.slice))
            elif isinstance(node, ast.Dict):
                self._no_folders |= {id(key) for key in node.keys if key is not None}
            elif isinstance(node, ast.Compare):
                self._no_folders |= {id(one) for one in (node.left, *node.comparators)}
            if isinstance(node, ast.Call):
                self._call(node, scopes)
            if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                continue
            if id(node) not in self._done and isinstance(
                node, ast.Constant | ast.JoinedStr | ast.BinOp | ast.Call | ast.Attribute | ast.Name
            ):
                self._path(node, scopes)

    def _assigned(self, node: ast.Assign | ast.AnnAssign, scopes: tuple[LocalNames, ...]) -> None:
        """What a name that is set once stands for is looked at where the name is used."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or node.value is None:
            return
        name = targets[0].id
        if any(item in self._reach.taken_by_name for item in self._module.by_name.get(name, ()) if item.node is node):
            return
        once = len(scopes[-1].assigned.get(name, ())) == 1 if scopes else len(self._module.by_name.get(name, ())) == 1
        if (
            once
            and self._is_statement_of_module_or_function(node, scopes)
            and HOLE not in "".join(self._texts(node.value, scopes))
        ):
            self._consume(node.value, scopes)

    def _is_statement_of_module_or_function(self, node: ast.stmt, scopes: tuple[LocalNames, ...]) -> bool:
        return bool(scopes) or any(item.node is node for item in self._module.by_name.get(_name_set(node), ()))

    def _call(self, node: ast.Call, scopes: tuple[LocalNames, ...]) -> None:
        name = self._reach.dotted(self._module, node.func, scopes)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name == "sys.path.insert" or name == "sys.path.append" or name == "site.addsitedir":
            for one in node.args:
                for text in self._texts(one, scopes):
                    if HOLE not in text:
                        self._reach.files.add_place(self._reach.files.root / text)
                self._consume(one, scopes)
        elif name == "os.chdir":
            for text in self._texts(node.args[0], scopes) if node.args else ():
                self._reach.files.add_folder(text.replace(HOLE, "*"))
            self._consume_all(node.args, scopes)
        elif name in _OPENS or (method == "open" and name is None):
            mode = _mode(node, 1 if name in _OPENS else 0)
            if mode[:1] in ("w", "a", "x") and "+" not in mode:
                self._consume(node.args[0] if name in _OPENS and node.args else node.func, scopes)
        elif name in _LISTS:
            self._listed |= {id(one) for one in node.args}
        elif name in _WRITES:
            self._consume_all(node.args, scopes)
        elif name in _WRITES_SECOND:
            self._consume_all(node.args[1:], scopes)
        elif method in _WRITING_METHODS:
            self._consume_all([node.func, *node.args, *(one.value for one in node.keywords)], scopes)
        elif method == "get":
            self._no_folders |= {id(one) for one in node.args}

    def _consume_all(self, nodes: list[ast.expr], scopes: tuple[LocalNames, ...]) -> None:
        for node in nodes:
            self._consume(node, scopes)

    def _consume(self, node: ast.AST, scopes: tuple[LocalNames, ...]) -> None:
        """Nothing in it is a path of its own; calls of which nothing is known are left to be looked at."""
        if isinstance(node, ast.Call) and self._texts(node, scopes) == UNKNOWN:
            return
        self._done.add(id(node))
        for child in ast.iter_child_nodes(node):
            self._consume(child, scopes)

    def _texts(self, node: ast.AST, scopes: tuple[LocalNames, ...]) -> Texts:
        return self._folding.texts(node, scopes)

    def _path(self, node: ast.expr, scopes: tuple[LocalNames, ...]) -> None:
        texts = self._texts(node, scopes)
        if texts == UNKNOWN:
            return
        self._consume(node, scopes)
        for text in texts:
            self._text(text, node)

    def _text(self, text: str, node: ast.expr) -> None:
        if not text.strip() or len(text) > _LONGEST or "\n" in text or "://" in text:
            return
        if "*" in text or "?" in text:  # glob.glob("data/*.csv")
            text = re.sub(f"[*?{HOLE}]+/?", HOLE, text)
        if HOLE in text:
            self._pattern(text, node)
            return
        for path in self._candidates(text):
            if path.is_file():
                self._file(path)
            elif path.is_dir() and id(node) not in self._no_folders and (id(node) in self._listed or _is_name(text)):
                self._folder(path, node)
        if " " in text and ".py" in text:  # a command
            for word in text.split():
                if word.endswith(".py"):
                    self._text(word, node)

    def _candidates(self, text: str) -> list[Path]:
        places = {folder / text: None for folder in self._reach.files.folders}
        if self._module.path is not None:
            places[self._module.path.parent / text] = None
        for path in places:
            self._reach.files.look_at(path)
        try:
            return list(dict.fromkeys(path.resolve() for path in places if path.exists()))
        except (OSError, ValueError, RuntimeError):
            return []

    def _file(self, path: Path) -> None:
        files = self._reach.files
        if files.project.is_output(path) or str(path).startswith(_NO_PLACES):
            return
        if path == self._module.path:
            self._reach.read_files.add(files.project.shown(path))  # a program that reads itself
        elif path.suffix == ".py":
            script = files.script(path)
            self._reach.script(script)
            self._reach.escape(script)  # its names may be taken as well
        else:
            self._reach.read_files.add(files.project.shown(path))

    def _folder(self, path: Path, node: ast.expr) -> None:
        files = self._reach.files
        if files.project.is_output(path):
            return
        if not path.is_relative_to(files.root):
            if not files.root.is_relative_to(path) and str(path) not in _NO_FOLDERS:
                self._say(
                    node, f"names the folder {path}, which is outside of the project: declare what is read there as an input"
                )
            return
        found = [one for one in files.project.below(path) if one.suffix != ".py"]
        if found:
            self._say(node, f"names the folder {files.project.shown(path)}; all {len(found)} files in it count")
            self._reach.read_files |= {files.project.shown(one) for one in found}

    def _pattern(self, text: str, node: ast.expr) -> None:
        files, listed = self._reach.files, self._reach.files.project
        start = text.partition(HOLE)[0]
        folder, slash, _ = start.rpartition("/")
        regex = re.compile(".*".join(map(re.escape, text.split(HOLE))))
        if slash and folder:
            places = [place for place in self._candidates(folder) if place.is_dir() and place != files.root]
            if any(not place.is_relative_to(files.root) for place in places):
                self._say(node, f"reads in {folder}, which is outside of the project: declare what is read there as an input")
            taken = [one for place in places for one in listed.below(place) if regex.fullmatch(_below(one, place, folder))]
        elif _HAS_ENDING.search(text):
            taken = [files.root / name for name in listed.names() if regex.fullmatch(name) or regex.fullmatch(f"/{name}")]
        elif re.fullmatch(f"{HOLE}/[A-Za-z0-9_][A-Za-z0-9_/-]*", text):  # a file without an ending, or a folder
            within = re.compile(rf"(.*/)?{re.escape(text[2:])}(/.*)?")
            taken = [files.root / name for name in listed.names() if within.fullmatch(name)]
        else:
            return
        data = [one for one in taken if one.suffix != ".py"]
        if data:
            shown = os.path.relpath(files.root / text.replace(HOLE, "*"), files.root)
            self._say(node, f"reads a file by a path that is known only as it runs; all {len(data)} files {shown} count")
            self._reach.read_files |= {files.project.shown(one) for one in data}
        if text.endswith(".py"):
            for one in taken:
                if one.suffix == ".py":
                    self._say(node, f"names {files.project.shown(one)}; all of it counts")
                    self._reach.whole(files.script(one))

    def _say(self, node: ast.expr, what: str) -> None:
        self._reach.say(f"{self._module.name}, line {node.lineno}: {what}")


def _is_name(text: str) -> bool:
    """A dot alone is seldom a folder, unless code lists it."""
    return any(letter.isalnum() for letter in text)


def _below(path: Path, place: Path, folder: str) -> str:
    """A path as the code writes it."""
    return folder + str(path)[len(str(place)) :]


def _mode(node: ast.Call, position: int) -> str:
    given = (
        node.args[position] if len(node.args) > position else next((k.value for k in node.keywords if k.arg == "mode"), None)
    )
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else "r"


def _name_set(node: ast.stmt) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if targets and isinstance(targets[0], ast.Name) else ""
