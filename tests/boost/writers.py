"""Every way to change a file that we could think of, tried inside of a protection on a folder of a person's.

python writers.py FOLDER KIND...    prints JSON: for each kind of protection and each writer "done", or what stopped it
"""

# ruff: noqa: SIM115  as careless as scripts are

from __future__ import annotations

import bz2
import configparser
import csv
import ctypes
import dbm.dumb
import fcntl
import gc
import gzip
import json
import logging
import lzma
import mmap
import os
import pickle
import shelve
import shutil
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import torch
from PIL import Image
from safetensors.torch import save_file

from flatout.boost.protection import protecting
from flatout.boost.protection.system import call
from flatout.doctor.patches import Patches

_SYS_ADMIN = 21
libc = ctypes.CDLL(None)
writers: dict[str, Callable[[Path], Any]] = {}


def writer(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    writers[function.__name__] = function
    return function


def _write(path: str) -> None:
    with open(path, "w") as file:
        file.write("changed")


def simple(**named: Callable[[Path], Any]) -> None:
    writers.update(named)


simple(
    open_w=lambda h: open(h / "results.csv", "w").write("changed"),
    open_a=lambda h: open(h / "results.csv", "a").write("changed"),
    open_plus=lambda h: open(h / "results.csv", "r+").write("changed"),
    open_x=lambda h: open(h / "new.csv", "x").write("changed"),
    path_write=lambda h: (h / "results.csv").write_text("changed"),
    path_touch=lambda h: (h / "touched").touch(),
    number=lambda h: os.write(os.open(h / "results.csv", os.O_WRONLY | os.O_TRUNC), b"changed"),
    read_and_truncate=lambda h: os.open(h / "results.csv", os.O_RDONLY | os.O_TRUNC),
    file_io=lambda h: __import__("io").FileIO(h / "results.csv", "w").write(b"changed"),
    savetxt=lambda h: np.savetxt(h / "results.csv", [[1.0]]),
    save_array=lambda h: np.save(h / "array.npy", np.ones(3)),
    savez=lambda h: np.savez(h / "arrays.npz", a=np.ones(3)),
    tofile=lambda h: np.ones(3).tofile(h / "array.npy"),
    memmap=lambda h: np.memmap(h / "array.npy", mode="r+", dtype=np.uint8).__setitem__(slice(None), 0),
    bz2_open=lambda h: bz2.open(h / "results.csv", "wt").write("changed"),
    gzip_open=lambda h: gzip.open(h / "results.csv", "wt").write("changed"),
    lzma_open=lambda h: lzma.open(h / "results.csv", "wt").write("changed"),
    tar=lambda h: tarfile.open(h / "results.csv", "w").add(sys.executable),
    zip=lambda h: zipfile.ZipFile(h / "results.csv", "w").writestr("a", "b"),
    archive=lambda h: shutil.make_archive(str(h / "archive"), "zip", h / "runs"),
    copy=lambda h: shutil.copy2(h / "notes.txt", h / "results.csv"),
    move=lambda h: shutil.move(h / "notes.txt", h / "results.csv"),
    copytree=lambda h: shutil.copytree(h / "runs", h / "runs2"),
    rmtree=lambda h: shutil.rmtree(h / "runs"),
    remove=lambda h: os.remove(h / "results.csv"),
    rename=lambda h: os.rename(h / "results.csv", h / "old.csv"),
    rename_folder=lambda h: os.rename(h / "runs", h / "runs.old"),
    replace=lambda h: os.replace(h / "notes.txt", h / "results.csv"),
    link=lambda h: os.link(h / "results.csv", h / "linked.csv"),
    symlink=lambda h: os.symlink("results.csv", h / "latest"),
    makedirs=lambda h: os.makedirs(h / "a" / "b"),
    rmdir=lambda h: os.rmdir(h / "empty"),
    truncate=lambda h: os.truncate(h / "results.csv", 0),
    chmod=lambda h: os.chmod(h / "results.csv", 0o600),
    chown=lambda h: os.chown(h / "results.csv", os.getuid(), os.getgid()),
    utime=lambda h: os.utime(h / "results.csv", (1, 1)),
    mkfifo=lambda h: os.mkfifo(h / "fifo"),
    mknod=lambda h: os.mknod(h / "node"),
    setxattr=lambda h: os.setxattr(h / "results.csv", "user.changed", b"1"),
    pickled=lambda h: pickle.dump(1, open(h / "results.csv", "wb")),
    jsonned=lambda h: json.dump(1, open(h / "results.csv", "w")),
    csv_writer=lambda h: csv.writer(open(h / "results.csv", "w")).writerow([1]),
    shelved=lambda h: shelve.open(str(h / "shelf")).__setitem__("a", 1),
    dbm_dumb=lambda h: dbm.dumb.open(str(h / "dumb"), "c").__setitem__("a", "b"),
    handler=lambda h: logging.FileHandler(h / "results.csv").emit(logging.makeLogRecord({"msg": "changed"})),
    temporary=lambda h: tempfile.mkstemp(dir=h),
    torch_save=lambda h: torch.save(torch.ones(3), h / "model.pt"),
    torch_save_by_name=lambda h: torch.save(obj=torch.ones(3), f=str(h / "model.pt")),
    torch_from_file=lambda h: torch.from_file(str(h / "array.npy"), shared=True, size=16, dtype=torch.uint8).fill_(7),
    torch_storage=lambda h: torch.UntypedStorage.from_file(str(h / "array.npy"), True, 16).fill_(7),
    safetensors=lambda h: save_file({"a": torch.ones(3)}, h / "model.safetensors"),
    parquet=lambda h: pyarrow.parquet.write_table(pa.table({"a": [1]}), h / "results.csv"),
    feather=lambda h: pyarrow.feather.write_feather(pa.table({"a": [1]}), h / "results.csv"),
    arrow_csv=lambda h: pyarrow.csv.write_csv(pa.table({"a": [1]}), h / "results.csv"),
    arrow_file=lambda h: pa.OSFile(str(h / "results.csv"), "w").write(b"changed"),
    image=lambda h: Image.new("L", (2, 2)).save(h / "picture.png"),
    subprocess_shell=lambda h: subprocess.run(f"echo changed > {h}/results.csv", shell=True, check=True),
    subprocess_rm=lambda h: subprocess.run(["rm", "-r", h / "runs"], check=True),
    subprocess_chmod=lambda h: subprocess.run(["chmod", "600", h / "results.csv"], check=True),
    subprocess_touch=lambda h: subprocess.run(["touch", "-d", "2001-01-01", h / "results.csv"], check=True),
    subprocess_python=lambda h: subprocess.run([sys.executable, "-c", f"open('{h}/results.csv','w')"], check=True),
    system=lambda h: os.system(f"echo changed >> {h}/results.csv"),
    spawned=lambda h: os.waitpid(os.posix_spawn("/bin/rm", ["rm", str(h / "results.csv")], os.environ), 0),
    c_fopen=lambda h: libc.close(libc.creat(os.fsencode(h / "results.csv"), 0o644)),
    c_unlink=lambda h: libc.unlink(os.fsencode(h / "results.csv")),
    c_rename=lambda h: libc.rename(os.fsencode(h / "results.csv"), os.fsencode(h / "c.csv")),
    c_chmod=lambda h: libc.chmod(os.fsencode(h / "results.csv"), 0o600),
    beside_triton=lambda h: _write(os.path.expanduser("~/.triton_mine.csv")),
    in_home=lambda h: _write(os.path.expanduser("~/results.csv")),
    through_a_link=lambda h: _write(str(h / "link_to_runs" / "1" / "log.txt")),
)


@writer
def unlink_by_folder(home: Path) -> None:
    os.unlink("results.csv", dir_fd=os.open(home, os.O_RDONLY))


@writer
def open_by_folder(home: Path) -> None:
    os.write(os.open("results.csv", os.O_WRONLY | os.O_TRUNC, dir_fd=os.open(home, os.O_RDONLY)), b"changed")


@writer
def sqlite(home: Path) -> None:
    with sqlite3.connect(home / "runs.db") as base:
        base.execute("insert into runs values (2)")


@writer
def sqlite_by_address(home: Path) -> None:
    with sqlite3.connect(f"file:{home}/runs.db", uri=True) as base:
        base.execute("insert into runs values (2)")


@writer
def duckdb(home: Path) -> None:
    import duckdb

    duckdb.sql(f"copy (select 1) to '{home}/results.csv'")


@writer
def jit(home: Path) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), str(home / "model.pt"))


@writer
def jit_of_the_module(home: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(str(home / "model.pt"))


@writer
def mapped(home: Path) -> None:
    with open(home / "array.npy", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:4] = b"abcd"


@writer
def in_a_thread(home: Path) -> None:
    thread = threading.Thread(target=_write, args=(str(home / "results.csv"),))
    thread.start()
    thread.join()


@writer
def in_a_fork(home: Path) -> None:
    child = os.fork()
    if not child:
        try:
            _write(str(home / "results.csv"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@writer
def by_a_locked_file(home: Path) -> None:
    handle = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.unlink(home / "lock")


@writer
def sent(home: Path) -> None:
    with open(home / "notes.txt", "rb") as source, open(home / "results.csv", "wb") as target:
        os.sendfile(target.fileno(), source.fileno(), 0, 4)


@writer
def bound(home: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(home / "socket"))


@writer
def configured(home: Path) -> None:
    settings = configparser.ConfigParser()
    settings["a"] = {"b": "c"}
    with open(home / "results.csv", "w") as file:
        settings.write(file)


@writer
def from_its_folder(home: Path) -> None:
    os.chdir(home)
    _write("results.csv")
    os.makedirs("deep/er")
    os.chdir("deep")
    _write("er/here.txt")
    assert os.path.exists("er/here.txt") and os.path.exists(home / "deep" / "er" / "here.txt")


def main(kind: str, home: Path, scratch: Path) -> dict[str, str]:
    """In one process, each writer in a folder of its own below `home`."""
    open_to = scratch.with_name("open")
    open_to.mkdir()
    scratch.mkdir()
    child = os.fork()
    if not child:
        if kind == "user-namespace":
            _be_no_administrator()
        protecting.enter(protecting.OVERLAY if kind == "user-namespace" else kind, scratch, [open_to], Patches())
        told = {}
        for name, write in writers.items():
            try:
                write(home / name)
                told[name] = "done"
            except BaseException as error:
                told[name] = f"{type(error).__name__}: {error}"
        gc.collect()  # what was not closed is written now
        (open_to / "told").write_text(json.dumps(told))
        os._exit(0)
    os.waitpid(child, 0)
    return dict(json.loads((open_to / "told").read_text()))


def _be_no_administrator() -> None:
    """As everybody but root is: mounting takes a user namespace then."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capget", ctypes.byref(header), ctypes.byref(sets))
    for at in (0, 1):
        sets[at] &= ~(1 << _SYS_ADMIN)
    call("capset", ctypes.byref(header), ctypes.byref(sets))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # torch.jit's farewell
    folder = Path(sys.argv[1]).resolve()
    print(json.dumps({kind: main(kind, folder / kind / "home", folder / kind / "scratch") for kind in sys.argv[2:]}))
