"""What others can reach: caches are read only where nobody else can write, and what queries spill is this process's alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.base import passing
from flatout.base.errors import MachineError
from flatout.base.passing import passing_folder
from flatout.base.trust import private_cache
from flatout.data.cache.cache import Cache
from flatout.machine.cache import CeilingsCache

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def place() -> Iterator[Path]:
    """Others can enter it: the folders of pytest are this user's alone, and below those everything is safe."""
    folder = Path(tempfile.mkdtemp(prefix="flatout-test-trust-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_of_ones_own_is_used_as_it_is(place: Path) -> None:
    cache = place / "cache"
    assert private_cache(cache) == cache, "not there yet"
    cache.mkdir(mode=0o755)
    assert private_cache(cache) == cache
    place.chmod(0o700)
    cache.chmod(0o777)
    assert private_cache(cache) == cache, "nobody else gets there"


def test_where_others_can_write_a_folder_inside_is_used(place: Path) -> None:
    cache = place / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    own = private_cache(cache)
    assert own == cache / f"of-user-{os.geteuid()}"
    assert own.stat().st_mode & 0o777 == 0o700
    assert private_cache(own) == own
    assert Cache(cache).folder == own
    own.chmod(0o755)
    with pytest.raises(MachineError, match=r"is not private to you.*FLATOUT_CACHE"):
        private_cache(cache)


def test_nothing_is_read_from_a_folder_that_was_left_for_us(place: Path) -> None:
    planted = place / "planted"
    cache = place / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    planted.mkdir()
    (cache / f"of-user-{os.geteuid()}").symlink_to(planted)
    with pytest.raises(MachineError, match="is not private to you"):
        CeilingsCache(cache)


@as_root
def test_owners(place: Path) -> None:
    cache = place / "cache"
    cache.mkdir(mode=0o755)
    os.chown(cache, 4321, 4321)
    assert private_cache(cache) == cache, "a volume of another owner, where only root could put it"
    place.chmod(0o1777)
    with pytest.raises(MachineError, match="cache belongs to user 4321 and is in a folder where others can create files"):
        private_cache(cache)
    cache.chmod(0o777)
    place.chmod(0o755)
    assert private_cache(cache) == cache / "of-user-0"


def test_a_passing_folder_is_ones_own_and_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with passing_folder("spill") as one, passing_folder("spill") as other:
        assert one != other
        assert one.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        "import os; from flatout.base.passing import passing_folder\nwith passing_folder('spill'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.iterdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with passing_folder("spill"):
        assert left.exists(), "it may be one that is just being made"
    monkeypatch.setattr(passing, "_YOUNG_S", -1.0)
    with passing_folder("spill") as mine:
        assert not left.exists()
        with passing_folder("spill"):
            assert mine.exists(), "somebody has it"


def test_a_query_spills_to_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from flatout.data.sources.tables.sql import QueryPart

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    part = QueryPart("select range as x from range(5)", tmp_path)
    with part._reader(10) as one, part._reader(10) as other:
        folders = list(tmp_path.iterdir())
        assert len(folders) == 2
        assert sum(batch.num_rows for reader in (one, other) for batch in reader) == 10
    assert list(tmp_path.iterdir()) == []
