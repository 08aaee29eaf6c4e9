"""The cache on disk: what is damaged, stale or half-written is never served, whoever else is at it and however it ended."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreters import ForkedPython, piped
from ragged import KINDS, MadeUp, batches, equal

from flatout.base.errors import UsageError
from flatout.data.cache import cache as cache_module
from flatout.data.cache.cache import Cache, cache_key
from flatout.data.cache.compression import CodecSpeed, best_codec, choose_compression, measure_codec
from flatout.data.cache.entries import hold
from flatout.data.cache.filling import FillingSource
from flatout.data.cache.mapped import MappedStore, cached_rows
from flatout.data.cache.tiers import Surroundings

PART_BYTES = 4096

CHILD = """
import sys, time, torch
sys.path.insert(0, {here!r})
from pathlib import Path
from ragged import MadeUp, batches, equal
from flatout.data.cache.cache import Cache, cache_key
from flatout.data.cache.filling import FillingSource
from flatout.data.cache.mapped import MappedStore, cached_rows
torch.set_num_threads(1)
folder = Path({folder!r})

def filling(source, **options):
    entry = Cache(folder).build(cache_key(source), source.schema, len(source))
    return FillingSource(source, MappedStore(entry, source, **{{"part_bytes": {part_bytes}, **options}}))

"""


def child(folder: Path, code: str) -> ForkedPython:
    """Another process that has `filling(source)` over the same folder."""
    return piped(["-c", _filling(folder) + code])


def _filling(folder: Path) -> str:
    return CHILD.format(here=str(Path(__file__).parent), folder=str(folder), part_bytes=PART_BYTES)


def ended(process: ForkedPython) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


@contextmanager
def opened(source: MadeUp, folder: Path, limit_bytes: int | None = None, **options: Any) -> Iterator[FillingSource]:
    entry = Cache(folder, limit_bytes).build(cache_key(source), source.schema, len(source))
    assert entry is not None
    filling = FillingSource(source, MappedStore(entry, source, **{"part_bytes": PART_BYTES, "wait": True, **options}))
    try:
        yield filling
    finally:
        filling.release()


def fill(source: MadeUp, folder: Path, count: int | None = None, **options: Any) -> None:
    """The first `count` batches of an epoch, or all."""
    with opened(source, folder, **options) as filling:
        for rows in batches(len(source), seed=0)[:count]:
            filling.read(rows)


def entry_of(source: MadeUp, folder: Path) -> Path:
    return folder / "rows" / cache_key(source)


def parts_of(source: MadeUp, folder: Path) -> list[Path]:
    return sorted(entry_of(source, folder).glob("part-*"))


def reads_right(filling: FillingSource, seed: int = 9) -> int:
    """Every row is as in the source; how many of them were asked of it."""
    assert isinstance(filling.source, MadeUp)
    before, truth = (
        filling.source.rows_read,
        MadeUp(**{name: getattr(filling.source, name) for name in ("kind", "rows", "mean", "name")}),
    )
    for rows in batches(len(truth), seed):
        assert equal(filling.read(rows), truth.read(rows))
    return filling.source.rows_read - before


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_later_run_reads_nothing_from_the_source(kind: str, compression: str, tmp_path: Path) -> None:
    source = MadeUp(kind)
    fill(source, tmp_path, compression=compression)
    with opened(MadeUp(kind), tmp_path) as filling:
        assert filling.complete and reads_right(filling) == 0 and filling.degraded == []
    assert len(parts_of(source, tmp_path)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfinished_fill_is_taken_up(kind: str, tmp_path: Path) -> None:
    source = MadeUp(kind)
    fill(source, tmp_path, count=4, compression="lz4")
    with opened(MadeUp(kind), tmp_path) as filling:  # with another compression: each part says its own
        assert not filling.complete
        assert reads_right(filling) == len(source) - 4 * 23
    with opened(MadeUp(kind), tmp_path) as filling:
        assert filling.complete and reads_right(filling) == 0


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_anywhere_are_found_and_rebuilt(kind: str, compression: str, tmp_path: Path) -> None:
    source, chance = MadeUp(kind), random.Random(1)
    fill(source, tmp_path / "good", compression=compression)
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        shutil.copytree(tmp_path / "good", folder)
        part = chance.choice(parts_of(source, folder))
        content = bytearray(part.read_bytes())
        # the end of a part is its index and its trailer: every other attempt aims there
        place = chance.randrange(len(content)) if attempt % 2 else len(content) - 1 - chance.randrange(120)
        content[place] ^= 1 << chance.randrange(8)
        part.write_bytes(content)
        with opened(MadeUp(kind), folder, compression=compression) as filling:
            again = reads_right(filling)
            assert again < len(source) and (again > 0) == bool(filling.degraded)  # a bit of padding harms nothing
            assert all(part.name in why and "from the source again" in why for why in filling.degraded)
        with opened(MadeUp(kind), folder) as filling:
            assert reads_right(filling) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_damaged_stretch_is_read_again(kind: str, tmp_path: Path) -> None:
    source = MadeUp(kind, rows=3000, mean=2000)
    with opened(source, tmp_path, part_bytes=1 << 30) as filling:
        reads_right(filling)
    (part,) = parts_of(source, tmp_path)
    content = bytearray(part.read_bytes())
    content[1000] ^= 1
    part.write_bytes(content)
    with opened(MadeUp(kind, rows=3000, mean=2000), tmp_path) as filling:
        assert 0 < reads_right(filling) < len(source) / 2
        assert len(filling.degraded) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_cut_off_parts_are_rebuilt(kind: str, tmp_path: Path) -> None:
    source = MadeUp(kind)
    fill(source, tmp_path)
    for keep in (0, 7, 31, 500, -1, -32, -33):
        part = parts_of(source, tmp_path)[1]
        size = part.stat().st_size
        os.truncate(part, keep if keep >= 0 else size + keep)
        with opened(MadeUp(kind), tmp_path) as filling:
            assert not filling.complete and reads_right(filling) > 0
            assert any("truncated" in why or "damaged" in why for why in filling.degraded)
        with opened(MadeUp(kind), tmp_path) as filling:
            assert filling.complete and reads_right(filling) == 0 and filling.degraded == []


def test_parts_swapped_between_entries_do_not_pass(tmp_path: Path) -> None:
    source, other = MadeUp("photos"), MadeUp("photos", rows=500)
    fill(source, tmp_path)
    fill(other, tmp_path)
    foreign = next(part for part in parts_of(other, tmp_path) if part.stat().st_size)
    (entry_of(source, tmp_path) / "part-999998").write_bytes(foreign.read_bytes())
    (entry_of(source, tmp_path) / "part-notes").write_text("not a part")
    with opened(MadeUp("photos"), tmp_path) as filling:
        assert reads_right(filling) == 0
        assert len(filling.degraded) == 1 and "beyond the 200 rows" in filling.degraded[0]


@pytest.mark.parametrize("manifest", [b"", b"{", b"[]", b'{"key": "another", "version": 1}', None])
def test_an_entry_without_a_good_manifest_is_made_anew(manifest: bytes | None, tmp_path: Path) -> None:
    source = MadeUp()
    fill(source, tmp_path)
    path = entry_of(source, tmp_path) / "manifest.json"
    path.unlink() if manifest is None else path.write_bytes(manifest)
    assert Cache(tmp_path).open(cache_key(source)) is None
    with opened(source, tmp_path) as filling:
        assert reads_right(filling) == len(source) and filling.degraded == []


def test_killed_in_the_middle_of_a_part(tmp_path: Path) -> None:
    """The child hangs while its third part is written aside; it is killed there, and the next run goes on."""
    source = MadeUp("photos", rows=400)
    process = child(
        tmp_path,
        """
import os
sync, calls = os.fsync, []
def hang(handle):
    name = os.readlink(f"/proc/self/fd/{handle}")
    if name.endswith(".tmp") and "part" in name:
        calls.append(name)
        if len(calls) == 3:
            print("hanging", flush=True)
            time.sleep(1000)
    sync(handle)
os.fsync = hang
source = MadeUp("photos", rows=400)
reading = filling(source, wait=True)
for rows in batches(400, seed=0):
    reading.read(rows)
reading.release()
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    folder = entry_of(source, tmp_path)
    assert len(parts_of(source, tmp_path)) == 2 and list(folder.glob(".part-*.tmp"))
    with opened(MadeUp("photos", rows=400), tmp_path) as other:  # while it lives: read what is there, write nothing
        assert 0 < reads_right(other) < 400
        assert list(folder.glob(".part-*.tmp")) and len(parts_of(source, tmp_path)) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    with opened(MadeUp("photos", rows=400), tmp_path) as filling:
        assert not list(folder.glob(".part-*.tmp"))
        assert 0 < reads_right(filling) < 400 and filling.degraded == []
    with opened(MadeUp("photos", rows=400), tmp_path) as filling:
        assert filling.complete and reads_right(filling) == 0


def test_two_processes_build_at_once(tmp_path: Path) -> None:
    code = """
source, truth = MadeUp("photos", rows=600), MadeUp("photos", rows=600)
reading = filling(source, wait=True)
(folder / "ready-{seed}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.001)
for epoch in range(3):
    for rows in batches(600, seed=epoch + {seed}):
        assert equal(reading.read(rows), truth.read(rows))
        time.sleep(0.005)
assert reading.degraded == [], reading.degraded
reading.release()
print(source.rows_read)
"""
    both = [child(tmp_path, code.replace("{seed}", str(seed))) for seed in (0, 10)]
    reads = [int(ended(process).split()[-1]) for process in both]
    assert min(reads) < 2 * 600  # three epochs: the one that fills reads few rows again, those on their way to the disk
    source = MadeUp("photos", rows=600)
    with opened(source, tmp_path) as filling:
        assert filling.complete and reads_right(filling) == 0
        stored = sum(part.count for part in filling.store._parts._index.parts)  # type: ignore[union-attr]
        assert stored == 600  # and nothing was written twice


def test_who_may_not_write_reads_along_and_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.data.cache.mapped._LOOK_AGAIN_S", 0.0)
    first_source, second_source = MadeUp(), MadeUp()
    with opened(second_source, tmp_path) as early:
        early.release()
    with opened(first_source, tmp_path) as first, opened(second_source, tmp_path) as second:
        some = torch.arange(120)
        first.read(some)
        assert first.store is not None and second.store is not None
        first.store.flush()
        assert equal(second.read(some), first.read(some)) and second_source.rows_read == 0
        rest = torch.arange(120, 200)
        second.read(rest)
        second.store.flush()
        assert not second.store.has(rest).any()  # the first one has the right to fill
        first.release()
        second.read(rest)
        second.store.flush()
        assert second.complete and reads_right(second) == 0


def test_training_does_not_wait_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, sync = MadeUp("photos", rows=600), os.fsync
    go_on = threading.Event()

    def slow(handle: int) -> None:
        go_on.wait()
        sync(handle)

    with opened(source, tmp_path, wait=False) as filling:
        monkeypatch.setattr(os, "fsync", slow)
        assert reads_right(filling) == 600  # would never end if it waited
        go_on.set()
        assert filling.store is not None
        filling.store.flush()
        assert 0 < int(filling.store.has(torch.arange(600)).sum()) < 600
        for seed in range(20):
            reads_right(filling, seed)
            filling.store.flush()
        assert filling.complete and filling.degraded == []


def test_the_key_follows_all_that_rows_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        cache_key(MadeUp()),
        cache_key(MadeUp(name="b")),
        cache_key(MadeUp(rows=201)),
        cache_key(MadeUp("documents")),
        cache_key(MadeUp(), "resize 224"),
    ]
    monkeypatch.setattr(cache_module, "VERSION", 999)
    keys.append(cache_key(MadeUp()))
    assert len(set(keys)) == len(keys)
    monkeypatch.undo()
    assert cache_key(MadeUp()) == keys[0]


def test_other_content_is_never_served(tmp_path: Path) -> None:
    fill(MadeUp(name="a"), tmp_path)
    changed = MadeUp(name="changed")
    with opened(changed, tmp_path) as filling:
        assert reads_right(filling) == len(changed)


def test_the_least_recently_used_entry_goes_first_and_none_in_use(tmp_path: Path) -> None:
    sources = {name: MadeUp("photos", rows=150, name=name) for name in ("a", "bb", "ccc", "dddd")}
    for name in ("a", "bb", "ccc"):
        fill(sources[name], tmp_path)
    one = Cache(tmp_path).used_bytes() // 3
    fill(sources["a"], tmp_path)  # used again: no longer the oldest
    held = Cache(tmp_path).open(cache_key(sources["bb"]))
    assert held is not None
    fill(sources["dddd"], tmp_path, limit_bytes=3 * one + one // 2)
    left = {name for name, source in sources.items() if entry_of(source, tmp_path).exists()}
    assert left == {"a", "bb", "dddd"}
    held.close()
    assert not list(tmp_path.glob("*/.gone-*"))
    with opened(MadeUp("photos", rows=150, name="bb"), tmp_path) as filling:
        assert reads_right(filling) == 0


def test_the_budget_is_kept_and_what_does_not_fit_is_said_once(tmp_path: Path) -> None:
    source, limit = MadeUp("photos", rows=600), 60_000
    with opened(source, tmp_path, limit_bytes=limit) as filling:
        for seed in range(2):
            for rows in batches(600, seed):
                assert equal(filling.read(rows), source._made(rows))
                assert Cache(tmp_path).used_bytes() <= limit
        (why,) = filling.degraded
        assert f"the cache in {tmp_path} takes no more rows" in why and "over its limit of 60 kB" in why
    with opened(MadeUp("photos", rows=600), tmp_path, limit_bytes=limit) as filling:
        assert 0 < reads_right(filling) < 600  # what did fit is used


def test_what_an_eviction_left_is_swept(tmp_path: Path) -> None:
    leftover = tmp_path / "rows" / ".gone-" / "deep"
    leftover.mkdir(parents=True)
    fill(MadeUp(), tmp_path, limit_bytes=10**9)
    assert not leftover.parent.exists()


def test_no_space_left_on_the_disk(tmp_path: Path) -> None:
    """A limit on the size of files, set by the kernel: writing fails in the middle of a part as on a full disk."""
    out = ended(
        child(
            tmp_path,
            """
import resource
source, truth = MadeUp("photos", rows=400, mean=3000), MadeUp("photos", rows=400, mean=3000)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
reading = filling(source, wait=True)
for epoch in range(2):
    for rows in batches(400, seed=epoch):
        assert equal(reading.read(rows), truth.read(rows))
reading.release()
print(len(reading.degraded), reading.degraded[0])
""",
        )
    )
    assert out.startswith("1 the cache in ") and "takes no more rows (OSError: File too large)" in out
    source = MadeUp("photos", rows=400, mean=3000)
    assert parts_of(source, tmp_path) == [] and not list(entry_of(source, tmp_path).glob(".*.tmp"))
    with opened(source, tmp_path) as filling:
        assert reads_right(filling) == 400 and filling.degraded == []


def test_a_folder_that_vanishes_does_not_end_the_run(tmp_path: Path) -> None:
    source = MadeUp("photos", rows=400)
    with opened(source, tmp_path / "cache") as filling:
        order = batches(400, seed=0)
        for rows in order[:8]:
            filling.read(rows)
        assert filling.store is not None
        filling.store.flush()
        shutil.rmtree(tmp_path / "cache")
        assert reads_right(filling) > 0
        filling.store.flush()
        assert reads_right(filling) > 0
        (why,) = filling.degraded
        assert "takes no more rows (FileNotFoundError" in why


def test_a_plan_can_ask_what_is_there_and_what_fits(tmp_path: Path) -> None:
    source, cache = MadeUp(), Cache(tmp_path / "made" / "later", limit_bytes=123_456)
    assert cached_rows(cache, source) == 0 and cache.room_bytes() == 123_456 and not (tmp_path / "made").exists()
    fill(source, cache.folder, count=4)
    assert cached_rows(cache, source) == 4 * 23 and cached_rows(cache, source, "otherwise prepared") == 0
    fill(source, cache.folder)
    os.truncate(parts_of(source, cache.folder)[0], 50)
    assert 0 < cached_rows(cache, source) < len(source)
    assert Cache(cache.folder).room_bytes() > cache.used_bytes() > 0  # without a limit, what the disk has


def test_open_finds_only_what_is_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "none")
    assert cache.open("0" * 32) is None and cache.degraded == [] and not (tmp_path / "none").exists()
    assert cache.used_bytes() == 0


def test_compression_is_chosen_by_what_it_delivers() -> None:
    codecs = {"lz4": CodecSpeed(2.0, 1e9), "zstd": CodecSpeed(3.0, 0.4e9)}
    choose: Callable[..., str] = lambda disk, needed, threads=1: best_codec(disk, codecs, needed, threads)  # noqa: E731
    assert choose(100e6, 1e9) == "zstd"  # 300 MB/s out of 100
    assert choose(300e6, 1e9) == "lz4"  # zstd unpacks no more than 400
    assert choose(300e6, 1e9, threads=4) == "zstd"
    assert choose(1.5e9, 2e9) == "none"  # either one would be slower than the disk
    assert choose(300e6, 310e6) == "none"  # not worth it
    assert best_codec(100e6, {"lz4": CodecSpeed(1.05, 1e9), "zstd": CodecSpeed(1.08, 1e9)}, 1e9) == "none"


SLOW_DISK = Surroundings(
    rows=1000, row_bytes=1e6, in_memory=False, device_free_bytes=0, host_free_bytes=1e9, disk_free_bytes=1e12,
    needed_rows_s=1e6, disk_bytes_s=1e6,
)  # fmt: skip
NOISE = np.random.default_rng(0).integers(0, 256, 1 << 19).astype(np.uint8)
ZEROS = np.zeros(1 << 19, np.uint8)


@pytest.mark.parametrize(
    ("change", "sample", "chosen", "why"),
    [
        ({}, ZEROS, ("lz4", "zstd"), "the disk reads 1 MB/s, training could use 1 TB/s; with "),
        ({}, NOISE, ("none",), "no codec helps: lz4 1x, zstd 1x, tried on 524 kB of rows"),
        ({}, ZEROS[:0], ("none",), "no rows to try"),
        ({"disk_bytes_s": 2e12}, None, ("none",), "the disk reads 2 TB/s, training needs at most 1 TB/s"),
        ({"host_free_bytes": 1e10}, None, ("none",), "1 GB fit into 10 GB free memory"),
        ({"disk_bytes_s": None}, None, ("none",), "flatout probe"),
        ({"needed_rows_s": None}, None, ("none",), "not known yet"),
    ],
)
def test_rows_are_sampled_only_where_the_disk_is_too_slow(
    change: dict[str, Any], sample: Any, chosen: tuple[str, ...], why: str
) -> None:
    def read() -> Any:
        assert sample is not None, "no row is read for nothing"
        return sample

    name, said = choose_compression(replace(SLOW_DISK, **change), 1e6, read)
    assert name in chosen and why in said


def test_a_small_row_costs_the_block_it_is_in() -> None:
    small = replace(SLOW_DISK, row_bytes=1e6, needed_rows_s=1e4, disk_bytes_s=1e8)
    name, why = choose_compression(small, 1000, lambda: ZEROS, threads=64)
    assert name != "none" and "100 MB/s, training could use 655 MB/s" in why  # 10 MB/s of rows, each in 64 kB of others


def test_a_codec_is_known_by_its_name() -> None:
    assert measure_codec("lz4", ZEROS).ratio > 50 > 1.1 > measure_codec("lz4", NOISE).ratio
    with pytest.raises(UsageError, match="unknown compression 'lz5'; did you mean 'lz4'"):
        Cache(Path("/nonexistent"), compression="lz5")


# text and tables in the same folder


def encoded_text(folder: Path, word: str) -> Path:
    """An entry that is not of rows, as large as told by its name."""
    entry = folder / "tokens" / hashlib.blake2b(word.encode(), digest_size=16).hexdigest()
    entry.mkdir(parents=True)
    (entry / "tokens.bin").write_bytes(bytes(30_000))
    os.utime(entry, (0, 0))
    return entry


def test_text_and_tables_count_against_the_budget_and_go_when_nobody_uses_them(tmp_path: Path) -> None:
    old, used = encoded_text(tmp_path, "old"), encoded_text(tmp_path, "used")
    deep = tmp_path / "tables" / ("0" * 32) / "train"
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(bytes(30_000))
    assert Cache(tmp_path).used_bytes() == 90_000
    held = hold(used)
    source = MadeUp("photos", rows=100)
    with opened(source, tmp_path, limit_bytes=110_000) as filling:
        assert reads_right(filling) == 100
        assert filling.degraded == []
    assert not old.exists() and used.exists()
    assert Cache(tmp_path, 110_000).trim() is None and Cache(tmp_path).used_bytes() <= 110_000
    why = Cache(tmp_path, 10_000).trim()
    assert why == f"the cache in {tmp_path} takes 30 kB, over its limit of 10 kB: all of it is in use"
    assert used.exists() and not deep.exists() and not entry_of(source, tmp_path).exists()
    assert held is not None
    held.close()
    assert Cache(tmp_path, 10_000).trim() is None and not used.exists()


def test_what_another_process_uses_stays_until_it_ends(tmp_path: Path) -> None:
    entry = encoded_text(tmp_path, "shared")
    code = """
from flatout.data.cache.entries import hold
held = hold(Path({entry!r}))
print("held", flush=True)
time.sleep(1000)
"""
    process = child(tmp_path, code.replace("{entry!r}", repr(str(entry))))
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert "all of it is in use" in str(Cache(tmp_path, 1000).trim()) and entry.exists()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert Cache(tmp_path, 1000).trim() is None and not entry.exists()


def test_folders_of_other_people_are_neither_counted_nor_touched(tmp_path: Path) -> None:
    for name in ("notes", "tokens/mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(bytes(5000))
    assert Cache(tmp_path).used_bytes() == 0 and Cache(tmp_path, 1).trim() is None
    assert hold(tmp_path / "notes") is None and sorted(path.name for path in (tmp_path / "notes").iterdir()) == ["file"]
    assert (tmp_path / "tokens" / "mine" / "file").exists()


def test_memory_stays_flat_over_many_epochs(tmp_path: Path) -> None:
    code = """
import psutil
for compression in ("none", "lz4"):
    source = MadeUp("photos", rows=300, mean=50_000, name=compression)
    reading = filling(source, wait=True, compression=compression, part_bytes=1 << 21)
    def epoch(number):
        for rows in batches(300, seed=number):
            reading.read(rows)
        return psutil.Process().memory_info().rss
    epoch(0)
    reading.store.flush()
    assert reading.complete
    print(*[epoch(number) for number in range(1, 12)])
    assert source.rows_read == 300
"""
    command = [sys.executable, "-c", _filling(tmp_path) + code]  # a new interpreter: a fork shares memory with others
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for line in out.splitlines():
        sizes = [int(word) for word in line.split()]
        assert len(sizes) == 11 and max(sizes[1:]) <= 1.02 * sizes[0], sizes
