"""100 GB of inputs that did not change are known within a second; the first time they are read by BLAKE3 on all cores."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from evidence import Report, options, take_turns

from flatout.pipelines.identity.hashing import digests_of_files
from flatout.pipelines.identity.inputs import InputHashes

GB = 10**9


def main() -> int:
    parser = options(__doc__, repeats=7)
    parser.add_argument("--folder", type=Path, help="where sparse files are made (default: the folder for temporary files)")
    asked = parser.parse_args()
    small = asked.quick or asked.smoke
    report = Report("pipeline_inputs", __doc__ or "", torch.device("cpu"))
    with tempfile.TemporaryDirectory(prefix="flatout-inputs-", dir=asked.folder) as made:
        root = Path(made)
        shapes = {"1,000 files": (1000, 100 * GB // 1000), "20,000 files": (20_000, GB // 20_000)}
        if small:
            shapes = {"1,000 files": (10, GB // 100), "20,000 files": (200, GB // 2000)}
        for name, (count, size) in shapes.items():
            _nothing_changed(report, root, name, count, size, asked)
            shutil.rmtree(root / "data")
        _first_time(report, root, asked)
    return report.finish(asked)


def _nothing_changed(report: Report, root: Path, name: str, count: int, size: int, asked: argparse.Namespace) -> None:
    data = root / "data"
    for n in range(count):
        path = data / f"{n % 100:02}" / f"{n}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
    time.sleep(0.2)  # a file that was written a moment ago is not remembered
    began_s = time.monotonic()
    first = InputHashes(root / "cache").of(data)
    print(f"{name}, {first.bytes / GB:g} GB: read for the first time in {time.monotonic() - began_s:.1f} s", file=sys.stderr)

    def again() -> float:
        start_s = time.monotonic()
        assert InputHashes(root / "cache").of(data) == first
        return time.monotonic() - start_s

    report.arm(f"nothing changed, {name}", "s", take_turns({name: again}, asked.repeats, asked.within)[name])
    report.conditions[name] = {"files": first.files, "bytes": first.bytes}
    report.bar(f"nothing changed, {name} of {first.bytes / GB:g} GB in all, s", f"nothing changed, {name}", 1.0, at_least=False)

    changed = data / "00" / "0.bin"
    with changed.open("r+b") as edited:
        edited.write(b"x")
    assert InputHashes(root / "cache").of(data).digest != first.digest, "one byte of one file was not noticed"


def _first_time(report: Report, root: Path, asked: argparse.Namespace) -> None:
    """Files of random bytes in the page cache: BLAKE3 on all cores against MD5 on one, which others use."""
    size = 10**7 if asked.quick or asked.smoke else 5 * 10**8
    files: Mapping[str, str] = {str(n): str(root / f"{n}.bin") for n in range(4)}
    for path in files.values():
        Path(path).write_bytes(os.urandom(size // 4))

    def ours() -> float:
        began_s = time.monotonic()
        digests_of_files(files)
        return size / (time.monotonic() - began_s) / 1e9

    def md5() -> float:
        began_s = time.monotonic()
        for path in files.values():
            with open(path, "rb") as file:
                hashlib.file_digest(file, "md5")
        return size / (time.monotonic() - began_s) / 1e9

    values = take_turns({"BLAKE3": ours, "MD5": md5}, asked.repeats, asked.within)
    report.arm("reading, BLAKE3 on all cores", "GB/s", values["BLAKE3"])
    report.arm("reading, MD5 on one core", "GB/s", values["MD5"])
    report.ratio("reading, against MD5", "reading, BLAKE3 on all cores", "reading, MD5 on one core", at_least=2.0)


if __name__ == "__main__":
    raise SystemExit(main())
