"""Which code counts: what a program can reach, and nothing that can't change what it does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from flatout.base.errors import UsageError
from flatout.pipelines.identity.changes import what_changed
from flatout.pipelines.identity.code import CodeIdentity, ProjectCode
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.identity.modules import CodeModule
from flatout.pipelines.identity.packages import package_versions
from flatout.pipelines.identity.project import CodeFiles
from flatout.pipelines.identity.versions import remembered_versions

# entry, helper of the entry, helper of the helper
PROJECT = {
    "main.py": '''
"""The entry."""
import helpers
from settings import WIDTH

def main():
    return helpers.scaled(WIDTH)

def unused():
    return 1

if __name__ == "__main__":
    print(main())
''',
    "helpers.py": '''
import deeper

def scaled(value):
    """Scales."""
    result = deeper.factor() * value
    return result

def other(value):
    return -value
''',
    "deeper.py": """
FACTOR = 3

def factor():
    return FACTOR
""",
    "settings.py": "WIDTH = 2\nHEIGHT = 3\n",
}


def identity(
    root: Path, files: Mapping[str, str], entry: str = "main.py", environment: Mapping[str, str] | None = None
) -> CodeIdentity:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ProjectCode(root, environment or {}).identity(entry)


@pytest.mark.parametrize(
    "file, old, new",
    [
        ("deeper.py", "FACTOR = 3", "FACTOR = 4"),
        ("deeper.py", "return FACTOR", "return -FACTOR"),
        ("helpers.py", "* value", "+ value"),
        ("settings.py", "WIDTH = 2", "WIDTH = 5"),
        ("main.py", "print(main())", "print(main(), main())"),
        ("deeper.py", "FACTOR = 3", "FACTOR = 3\nprint('loaded')"),
        ("deeper.py", "FACTOR = 3", "FACTOR = 3.0"),
        ("deeper.py", "FACTOR = 3", "FACTOR = True"),
        ("helpers.py", "import deeper", "import json as deeper"),
    ],
)
def test_what_can_change_the_outcome_counts(tmp_path: Path, file: str, old: str, new: str) -> None:
    before = identity(tmp_path, PROJECT)
    after = identity(tmp_path, {file: PROJECT[file].replace(old, new)})
    assert before.digest != after.digest
    assert any(file.removesuffix(".py") in sentence for sentence in what_changed(before, after))


@pytest.mark.parametrize(
    "file, old, new",
    [
        ("main.py", "The entry.", "An entry."),
        ("main.py", "import helpers", "# a comment\nimport helpers"),
        ("main.py", "return 1", "return 2"),
        ("helpers.py", "Scales.", "Multiplies."),
        ("helpers.py", "result", "renamed"),
        ("helpers.py", "return -value", "return value"),
        ("helpers.py", "deeper.factor() * value", "(deeper.factor()\n        * value)"),
        ("deeper.py", "FACTOR = 3", "import math\nFACTOR = 3"),
        ("settings.py", "HEIGHT = 3", "HEIGHT = 4"),
        ("settings.py", "WIDTH = 2\nHEIGHT = 3\n", "HEIGHT = 3\nWIDTH = 2\n"),
    ],
)
def test_what_can_not_change_it_does_not(tmp_path: Path, file: str, old: str, new: str) -> None:
    before = identity(tmp_path, PROJECT)
    assert old in PROJECT[file]
    after = identity(tmp_path, {file: PROJECT[file].replace(old, new)})
    assert before.digest == after.digest and what_changed(before, after) == () and before.fallbacks == ()


def test_a_function_of_a_module_is_an_entry_as_well(tmp_path: Path) -> None:
    before = identity(tmp_path, PROJECT, "helpers:other")
    changed = PROJECT["helpers.py"].replace("* value", "+ value")
    assert identity(tmp_path, {"helpers.py": changed}, "helpers:other").digest == before.digest
    assert identity(tmp_path, {"helpers.py": changed.replace("-value", "value")}, "helpers:other").digest != before.digest


@pytest.mark.parametrize("entry", ["none.py", "nowhere:main", "helpers:nothing"])
def test_an_entry_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path, entry: str) -> None:
    with pytest.raises(UsageError, match=entry):
        identity(tmp_path, PROJECT, entry)


def test_code_that_did_not_change_is_not_read_again_and_is_never_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        **PROJECT,
        "helpers.py": PROJECT["helpers.py"]
        + "try:\n    import extra\nexcept ImportError:\n    pass\nopen('a.csv')\n"
        + "import os\nopen(os.environ.get('WHICH', 'a.csv'))\n",
    }
    root, read = tmp_path / "project", []
    script = CodeFiles.script

    def counted(self: CodeFiles, path: Path, name: str = "") -> CodeModule:
        read.append(path)
        return script(self, path, name)

    monkeypatch.setattr(CodeFiles, "script", counted)

    def again(**variables: str) -> str:
        return ProjectCode(root, variables, hashes=InputHashes(tmp_path / "cache")).identity("main.py").digest

    identity(root, {**files, "a.csv": "1"})
    time.sleep(0.2)
    read.clear()
    first = again()
    assert again() == first and len(read) == 1
    assert again(UNUSED="1") == first and len(read) == 1, "a variable that nothing asked for"
    for name, text in (("deeper.py", "def factor():\n    return 9\n"), ("extra.py", "print(1)\n"), ("a.csv", "2")):
        (root / name).write_text(text)
        changed = again()
        assert changed != first and changed == ProjectCode(root, {}).identity("main.py").digest, name
        (root / name).write_text(files[name]) if name in files else (root / name).unlink()
        if name == "a.csv":
            (root / name).write_text("1")
        assert again() == first
    (root / "b.csv").write_text("3")
    time.sleep(0.2)
    other = again(WHICH="b.csv")
    assert other != first and other == ProjectCode(root, {"WHICH": "b.csv"}).identity("main.py").digest
    assert again(WHICH="a.csv") != other and again(WHICH="b.csv") == other
    for entry in (tmp_path / "cache" / "code").iterdir():
        entry.write_text('{"fingerprint": 1}')
    assert again() == first


def test_code_that_is_nested_too_deeply_counts_as_it_is_written(tmp_path: Path) -> None:
    deep = "X = " + " + ".join(["1"] * 2500) + "\nprint(X)\n"
    before = identity(tmp_path, {"main.py": deep, "other.py": "Y = 1"})
    assert "nested too deeply" in before.fallbacks[0]
    assert identity(tmp_path, {"main.py": deep.replace("print(X)", "print(-X)")}).digest != before.digest
    assert identity(tmp_path, {"main.py": deep, "other.py": "Y = 2"}).digest != before.digest


def test_the_place_of_a_project_does_not_count(tmp_path: Path) -> None:
    assert identity(tmp_path / "a", PROJECT).digest == identity(tmp_path / "b", PROJECT).digest


def test_versions_are_those_of_what_is_imported_and_what_that_needs(tmp_path: Path) -> None:
    found = identity(tmp_path, {"main.py": "import json\nimport yaml\nimport nosuchlibrary\n"})
    assert found.libraries == ("nosuchlibrary", "yaml")
    versions = package_versions([*found.libraries, "pandas"])
    assert set(versions) >= {"python", "pyyaml", "nosuchlibrary", "pandas", "numpy"} and "torch" not in versions
    assert versions["nosuchlibrary"] == "not installed" and versions["numpy"][0].isdigit()


def test_versions_are_looked_up_again_when_a_package_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    looked_up: list[int] = []

    def look_up() -> dict[str, str]:
        looked_up.append(1)
        return {"some": str(len(looked_up))}

    def ask() -> str:
        return remembered_versions(tmp_path / "cache", ["some"], look_up)["some"]

    assert [ask(), ask()] == ["1", "2"], "a folder that changed a moment ago may change once more at the same time"
    os.utime(tmp_path / "packages", (1e9, 1e9))
    assert [ask(), ask()] == ["3", "3"]
    (tmp_path / "packages" / "some-2.dist-info").mkdir()
    assert ask() == "4"
    os.utime(tmp_path / "packages", (1.1e9, 1.1e9))
    assert [ask(), ask()] == ["5", "5"]
    for kept in (tmp_path / "cache" / "versions").iterdir():
        kept.write_text('{"of": 1}')
    assert ask() == "6"
