"""Files that are damaged, odd, or made to do harm: each is an error in words that names it, and takes no memory for it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import socket
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flatout as fo
from flatout.base.errors import DataError, FlatoutError
from flatout.data.files import allowance, lines
from flatout.data.files.array_files import read_array, read_columns
from flatout.data.sources.photos.listing import find_photos
from flatout.data.sources.tables.scan import scan
from flatout.explore.drafting.new import draft

MB = 1 << 20


def rows_csv(rows: int = 40, label: str = "01") -> str:
    return "a,label\n" + "".join(f"{row % 7},{label[row % 2]}\n" for row in range(rows))


# Memory


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 10 MB free."""
    monkeypatch.setattr(allowance, "free_host_bytes", lambda: 10 * MB)


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE_BYTES", 100_000)


def quick_xz(content: bytes) -> bytes:
    return lzma.compress(content, preset=0)


def packed(kind: str, content: bytes) -> bytes:
    if kind == "zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.csv", content)
        return out.getvalue()
    if kind in ("zst", "lz4"):
        import pyarrow as pa

        codec = pa.Codec("zstd" if kind == "zst" else "lz4")
        return bytes(codec.compress(content, asbytes=True))
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": quick_xz, "": bytes}[kind](content)


@pytest.mark.parametrize("kind", ["", "gz", "bz2", "xz", "zst", "lz4", "zip"])
@pytest.mark.parametrize("content", [b"a" * MB, b"a,label\n" + b"x" * MB])
def test_a_line_of_a_table_has_a_longest_length(tmp_path: Path, short_lines: None, kind: str, content: bytes) -> None:
    path = tmp_path / ("t.csv" + (f".{kind}" if kind else ""))
    path.write_bytes(packed(kind, content))
    with pytest.raises(DataError, match=r"t\.csv.*: a line is longer than 100 kB"):
        scan(path)
    path = tmp_path / ("t.jsonl" + (f".{kind}" if kind else ""))
    path.write_bytes(packed(kind, b'{"label": "' + b"x" * (6 * MB)))
    with pytest.raises(DataError, match=r"t\.jsonl.*: a line is longer than 100 kB"):
        scan(path)


def test_a_line_of_documents_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.data.sources.texts.tokens.LONGEST_LINE_BYTES", MB)
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "' + b"a" * (3 * MB)))
    with pytest.raises(DataError, match=r"d\.jsonl\.gz: line 2 is longer than"):
        fo.data.text(str(tmp_path / "d.jsonl.gz"), window=8)


def test_lines_of_quoted_values_are_bounded_where_they_are_counted(tmp_path: Path, short_lines: None) -> None:
    """The line of a bad row is looked up by a reader of its own, which takes lines whole."""
    path = tmp_path / "t.csv"
    path.write_text('a,label\n1,0\n1,2,3\n"' + "x" * (3 * MB) + '",1\n')
    with pytest.raises(DataError, match=r"t\.csv"):
        scan(path)


def test_a_first_line_of_nothing_but_commas_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.data.sources.tables.dialect._MOST_COLUMNS", 1000)
    (tmp_path / "t.csv").write_text("," * 2000 + "\n" + "," * 2000)
    with pytest.raises(DataError, match=r"t\.csv: its first line has 2,001 columns.* 1,000"):
        scan(tmp_path / "t.csv")


@pytest.mark.parametrize("kind", ["chars", "bytes"])
@pytest.mark.parametrize("name", ["t.txt.gz", "t.txt.xz", "t.jsonl.gz"])
def test_text_that_unpacks_to_more_than_is_free(tmp_path: Path, little_memory: None, name: str, kind: str) -> None:
    text = b"some words " * (2 * MB)
    content = b'{"text": "%b"}\n' % text[:MB] * 20 if "jsonl" in name else text
    (tmp_path / name).write_bytes((gzip.compress if name.endswith("gz") else quick_xz)(content))
    for on_bad in ("error", "skip"):  # a file too large is none to leave out without a word
        with pytest.raises(DataError, match=rf"{name}.* does not fit into memory"):
            fo.data.text(str(tmp_path / name), window=8, encoding=kind, on_bad=on_bad)


def npy_header(text: str, version: int = 1) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_arrays_are_bounded_by_what_their_headers_declare(tmp_path: Path, little_memory: None) -> None:
    small = npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }")
    large = npy_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 40}, 5), }}")
    npz(tmp_path / "lies.npz", x=small + bytes(5 * MB))
    npz(tmp_path / "says.npz", x=large + bytes(100))
    npz(tmp_path / "full.npz", x=small + bytes(20 * MB))
    npz(tmp_path / "header.npz", x=b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(5 * MB))
    (tmp_path / "says.npy").write_bytes(large + bytes(100))
    (tmp_path / "lies-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05" + bytes(30 * MB)))
    (tmp_path / "says-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x0e\x03" + b"\x7f\xff\xff\xff" * 3 + bytes(MB)))
    (tmp_path / "fits-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05hello"))
    for name, message in (
        ("lies.npz", "20 bytes, and 5242880 are there: it is damaged, or holds more than one array"),
        ("says.npz", "and 100 are there: it is cut off"),
        ("full.npz", "does not fit into memory: its arrays are, unpacked, 21 MB; the limit here is 8.39 MB"),
        ("header.npz", "its header says that it is 2147483647 bytes long"),
        ("says.npy", "and 100 are there: it is cut off"),
        ("lies-idx1-ubyte.gz", "its header declares 5 bytes of values, more are there"),
        ("says-idx3-ubyte.gz", "does not fit into memory: its header asks for"),
    ):
        with pytest.raises(DataError, match=f"{name}.*{message}"):
            read_array(tmp_path / name, "x")
    assert bytes(read_array(tmp_path / "fits-idx1-ubyte.gz", "x")) == b"hello"


def test_an_allocation_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros(5))

    def fails(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("flatout.data.files.npy.read_values", fails)
    with pytest.raises(DataError, match=r"x\.npy does not fit into memory: an allocation failed"):
        read_array(tmp_path / "x.npy", "x")


# Arrays


def test_headers_of_npy_are_not_evaluated(tmp_path: Path) -> None:
    for text, message in (
        ("{'descr': '<f8', 'fortran_order': False, 'shape': " + "(" * 5000 + "}", "expected descr, fortran_order and shape"),
        ("{'descr': " + "-" * 9000 + "}", "expected descr, fortran_order and shape"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "Python objects"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "records of several fields"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,)}", "has the shape"),
        ("{'descr': '<S0', 'fortran_order': False, 'shape': (1152921504606846976,)}", "values of no bytes"),
        ("{'descr': '<q9', 'fortran_order': False, 'shape': (1,)}", "which NumPy does not know"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 0, 4611686018427387904)}", "shape"),
    ):
        (tmp_path / "x.npy").write_bytes(npy_header(text, 2) + bytes(8))
        with pytest.raises(DataError, match=rf"x\.npy.*{message}"):
            read_array(tmp_path / "x.npy", "x")


@pytest.mark.parametrize("array", [
    np.arange(12.0).reshape(3, 4), np.asfortranarray(np.arange(12, dtype=">i4").reshape(3, 4)), np.array("a"),
    np.array(["é", "b"]), np.zeros((0, 3)),
])  # fmt: skip
def test_arrays_come_back_as_numpy_wrote_them(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "x.npy", array)
    np.savez_compressed(tmp_path / "x.npz", x=array)
    for found in (read_array(tmp_path / "x.npy", "x"), read_columns(tmp_path / "x.npz")["x"]):
        assert isinstance(found, np.ndarray) and found.dtype == array.dtype and np.array_equal(found, array)


def test_odd_archives(tmp_path: Path) -> None:
    good = npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }") + bytes(4)
    whole = npz(tmp_path / "x.npz", x=good).read_bytes()
    encrypted = bytearray(whole)
    encrypted[6] |= 1  # the flag, in the file's own header and in the table of contents
    encrypted[whole.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "encrypted.npz").write_bytes(encrypted)
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with zipfile.ZipFile(tmp_path / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", good)
    zipfile.ZipFile(tmp_path / "none.npz", "w").close()
    assert np.asarray(read_columns(tmp_path / "lzma.npz")["x"]).tolist() == [0.0]
    for name, message in (
        ("encrypted.npz", r"is encrypted \(x\.npy\): unpack it with its password"),
        ("other.npz", "'notes.txt', which is no array"),
        ("none.npz", "there is no array in it"),
    ):
        with pytest.raises(DataError, match=f"{name}.*{message}"):
            read_columns(tmp_path / name)


# Arrow and Parquet


def feather(path: Path, **columns: Any) -> Path:
    import pyarrow as pa
    from pyarrow import feather as arrow_feather

    arrow_feather.write_feather(pa.table(columns), path, compression="uncompressed")
    return path


def test_text_that_is_not_utf8_in_binary_tables(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    words = ["good", "fine", "evil", "okay"]
    path = feather(tmp_path / "t.feather", a=words, label=[0, 1, 0, 1])
    path.write_bytes(path.read_bytes().replace(b"evil", b"ev\xffl"))
    parquet.write_table(
        pa.table({"a": words, "label": [0, 1, 0, 1]}), tmp_path / "t.parquet", use_dictionary=False, compression=None
    )
    content = (tmp_path / "t.parquet").read_bytes().replace(b"evil", b"ev\xffl")
    (tmp_path / "t.parquet").write_bytes(content)
    for name in ("t.feather", "t.parquet"):
        with pytest.raises(DataError, match=rf"{name}: column 'a' holds text that is not UTF-8, first in row 3"):
            fo.data.table(str(tmp_path / name), label="label")


def test_offsets_beyond_the_values_are_an_error_and_no_crash(tmp_path: Path) -> None:
    path = feather(tmp_path / "t.feather", a=["ab"] * 64, label=[0, 1] * 32)
    offsets = np.arange(0, 130, 2, dtype="<i4").tobytes()
    content = path.read_bytes()
    assert offsets in content
    wrong = np.arange(0, 130, 2, dtype="<i4") * 16_000_000  # each value megabytes away from the file's
    path.write_bytes(content.replace(offsets, wrong.tobytes()))
    with pytest.raises(DataError, match=r"t\.feather: column 'a' is damaged"):
        fo.data.table(str(path), label="label")


def test_dates_that_no_calendar_has(tmp_path: Path) -> None:
    import pyarrow as pa

    feather(tmp_path / "t.feather", a=pa.array([0, 10, 99_999_999], pa.date32()), label=[0, 1, 0])
    feather(tmp_path / "u.feather", a=pa.array([0, 1 << 60, 5], pa.timestamp("us")), label=[0, 1, 0])
    for name, row in (("t", 3), ("u", 2)):
        with pytest.raises(DataError, match=rf"{name}\.feather: column 'a' holds a date outside .* first in row {row}"):
            fo.data.table(str(tmp_path / f"{name}.feather"), label="label")


# JSON lines


def test_a_key_that_comes_twice_is_a_bad_line(tmp_path: Path) -> None:
    lines = [json.dumps({"a": row, "text": "some words", "label": row % 2}) for row in range(6)]
    lines[2] = '{"a": 1, "a": 2, "text": "x", "label": 1}'
    lines[4] = '{"a": NaN, "text": "x", "label": 1}'
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"t\.jsonl, line 3: the key 'a' occurs twice"):
        scan(path)
    with pytest.raises(DataError, match=r"t\.jsonl line 3: the key 'a' occurs twice"):
        fo.data.text(str(path), window=4)
    found = scan(path, on_bad="skip")
    assert found.rows == 4 and found.bad.count == 2
    for columns in (["a"], ["label"], None):  # the same rows are left out, whichever columns are read
        assert sum(batch.num_rows for batch, _ in found.batches(columns)) == 4


@pytest.mark.parametrize("line", [
    b'{"a": ' + b"[" * 100_000, b'{"a": 99999999999999999999999, "label": 1}', b'{"a": "\\ud800", "label": 1}',
    b'{"a": 1}{"a": 2}',
    b'{"a": "caf\xe9", "label": 1}', b'{"a\xff": 1, "label": 1}', b"[]", b"nothing", b'{"a": [1, "b"], "label": 0}',
])  # fmt: skip
def test_strange_lines_of_json(tmp_path: Path, line: bytes) -> None:
    good = b"".join(b'{"a": %d, "label": %d}\n' % (row, row % 2) for row in range(8))
    (tmp_path / "t.jsonl").write_bytes(good + line + b"\n" + good)
    found = scan(tmp_path / "t.jsonl", on_bad="skip")
    assert sum(batch.num_rows for batch, _ in found.batches()) == found.rows == 17 - found.bad.count


# CSV


def test_ragged_rows_are_left_out_whatever_they_hold(tmp_path: Path) -> None:
    rows = rows_csv().encode().splitlines(keepends=True)
    rows[5:5] = ["1,2,café\n".encode(), b"1\n", b'1,"2,3\n4",5\n']
    (tmp_path / "t.csv").write_bytes(b"".join(rows))
    data = fo.data.table(str(tmp_path / "t.csv"), label="label", on_bad="skip")
    assert len(data.train) == 40 and data.left_out()[0] == 3
    with pytest.raises(DataError, match=r"t\.csv, line 6: expected 2 values, got 3"):
        fo.data.table(str(tmp_path / "t.csv"), label="label")
    (tmp_path / "t.csv").write_bytes(b"".join(rows).replace("é".encode(), b"\xe9"))
    for on_bad in ("error", "skip"):
        with pytest.raises(DataError, match=r"t\.csv is not UTF-8 text: line 6 has the byte 0xe9"):
            fo.data.table(str(tmp_path / "t.csv"), label="label", on_bad=on_bad)


def test_a_header_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"caf\xe9,label\n1,0\n2,1\n")
    with pytest.raises(DataError, match=r"t\.csv is not UTF-8 text: line 1 has the byte 0xe9"):
        scan(tmp_path / "t.csv")


def test_a_stray_word_among_labels_is_named_and_never_called_missing(tmp_path: Path) -> None:
    rows = rows_csv(200).splitlines()
    rows[41], rows[91] = "3,maybe", "4,maybe"
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    drafted = draft([str(tmp_path / "t.csv")], None, tmp_path)
    entries = {entry.key: entry for entry in drafted.data}
    assert "na" not in entries and entries["on_bad"].value == "skip"
    assert "2 cells of 'label' not whole numbers: 'maybe', first in row 41" in entries["on_bad"].note
    assert "without a label" not in entries["on_bad"].note
    assert ("bad rows", "2 cells of 'label' not whole numbers: 'maybe', first in row 41") in drafted.facts
    with pytest.raises(DataError, match=r"t\.csv, line 42: column 'label' is int64.*'maybe'"):
        fo.data.table(str(tmp_path / "t.csv"), label="label")
    count, words = fo.data.table(str(tmp_path / "t.csv"), label="label", on_bad="skip").left_out()
    assert count == 2 and words is not None and "line 42: column 'label' is int64" in words and "'maybe'" in words


def test_a_sign_of_a_missing_label_is_still_one(tmp_path: Path) -> None:
    rows = rows_csv(200).splitlines()
    rows[41], rows[91] = "3,?", "4,unknown"
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    entries = {entry.key: entry for entry in draft([str(tmp_path / "t.csv")], None, tmp_path).data}
    assert entries["na"].value == ["?"] and "rows without a label: 1" in entries["on_bad"].note
    assert "'unknown', first in row 91" in entries["on_bad"].note  # a word is named, and never missing without a word


def test_why_a_label_is_bad_is_said_of_each(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n1,0.5\n2,\n3,inf\n4,1e300\n5,1.5\n")
    words = fo.data.table(str(tmp_path / "t.csv"), label="label", on_bad="skip").left_out()[1] or ""
    for said in ("line 3: the label 'label' is missing", "line 4: the label 'label' is inf, not finite",
                 "line 5: the label 'label' is 1e+300, too large for float32"):  # fmt: skip
        assert said in words


def test_what_was_left_out_is_counted_in_the_result(tmp_path: Path) -> None:
    rows = rows_csv(80).splitlines()
    rows[5], rows[7] = "1,2,3", "x,y,z"
    (tmp_path / "t.csv").write_text("\n".join(rows))
    (tmp_path / "v.csv").write_text(rows_csv(20) + "1\n")
    data = fo.data.table(str(tmp_path / "t.csv"), label="label", on_bad="skip", validation=str(tmp_path / "v.csv"))
    recipe = fo.Recipe(data=data, model="mlp", objective="binary", batch=16, lr=1e-3, budget="2 steps")
    result = fo.run(recipe, runs=tmp_path / "runs").result
    assert result["bad_row_count"] == 3 and "t.csv, line 6: expected 2 values, got 3" in result["bad_rows"]


# Files that are none


def folder_of_photos(folder: Path) -> Path:
    from PIL import Image

    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for kind in ("jpg", "png", "bmp", "tiff", "TIF", "gif", "webp"):
            shade = 60 if name == "cats" else 200
            image = Image.new("RGB", (24, 20), (shade, 10, 10))
            image.save(folder / name / f"p.{kind}", {"jpg": "JPEG", "TIF": "TIFF"}.get(kind, kind.upper()))
    return folder


def test_every_kind_of_image_is_read_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    folder = folder_of_photos(tmp_path / "photos")
    for name in ("notes.txt", "more.txt", "p.heic", "README"):
        (folder / "cats" / name).write_text("none of these")
    data = fo.data.images(str(folder), size=16)
    assert len(data.train) == 14
    with fo.loader(data, batch=14, device="cpu") as batches:
        assert sorted(next(iter(batches))["y"].tolist()) == [0] * 7 + [1] * 7
    (note,) = data.notes
    assert note.startswith(f"4 files in {folder} left out, not images that are read (JPEG, PNG, WEBP, GIF, BMP, TIFF): 2 .txt")
    assert "1 .heic" in note and "1 without an ending" in note


def test_tiff_of_other_kinds(tmp_path: Path) -> None:
    from PIL import Image

    folder = folder_of_photos(tmp_path / "photos")
    Image.fromarray(np.full((20, 24), 40_000, np.uint16)).save(folder / "cats" / "deep.tiff")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (24, 20)).save(folder / "cats" / "turned.tiff", exif=exif)
    assert len(fo.data.images(str(folder), size=16).train.read(torch.arange(16))["y"]) == 16
    Image.fromarray(np.zeros((20, 24), np.float32)).save(folder / "cats" / "float.tiff")
    with pytest.raises(DataError, match=r"float\.tiff: is a TIFF of floating-point values"):
        fo.data.images(str(folder), size=16)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_sockets_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    folder = folder_of_photos(tmp_path / "photos")
    os.mkfifo(folder / "cats" / "pipe")
    assert len(find_photos(folder).names) == 14
    os.mkfifo(folder / "cats" / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        home = os.getcwd()
        os.chdir(folder / "dogs")  # the name of a socket is short
        try:
            server.bind("socket.png")
        finally:
            os.chdir(home)
        data = fo.data.images(str(folder), size=16, on_bad="skip")
    assert len(data.train) == 14 and data.left_out()[0] == 2
    with pytest.raises(DataError, match=r"pipe\.jpg: can't be read: it is a named pipe, which may never end"):
        fo.data.images(str(folder), size=16)
    for name in ("t.csv", "x.npy", "t.txt", "tokenizer.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "good.txt").write_text("some words " * 20)
    for read in (
        lambda: fo.data.table(str(tmp_path / "t.csv"), label="label"),
        lambda: fo.data.arrays(str(tmp_path / "x.npy")),
        lambda: fo.data.text(str(tmp_path / "t.txt"), window=4),
        lambda: fo.data.text(str(tmp_path / "good.txt"), window=4, tokenizer=str(tmp_path / "tokenizer.json")),
        lambda: fo.data.table("/dev/zero", label="label"),
    ):
        with pytest.raises(DataError, match=r"named pipe|a device"):
            read()


def test_a_jpeg_of_endless_scans_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr("flatout.data.decoding.decode._MOST_SCANNED_PIXELS", 10_000)
    folder = folder_of_photos(tmp_path / "photos")
    out = io.BytesIO()
    Image.new("RGB", (64, 64)).save(out, "JPEG", progressive=True)
    (folder / "cats" / "long.jpg").write_bytes(out.getvalue()[:-2] + b"\xff\xda\0\x02" * 100)
    data = fo.data.images(str(folder), size=16, on_bad="skip")
    with fo.loader(data, batch=15, device="cpu") as batches:
        next(iter(batches))
    assert "scans of" in (data.left_out()[1] or "")


def test_a_tokenizer_with_an_id_beyond_all_others(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    (tmp_path / "t.txt").write_text("a b " * 50)
    with pytest.raises(DataError, match="has 2 tokens, and one of them is number 4000000000"):
        fo.data.text(str(tmp_path / "t.txt"), window=4, tokenizer=str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_batches_of_arrow_have_to_fit_before_they_are_unpacked(tmp_path: Path, little_memory: None, kind: str) -> None:
    import pyarrow as pa
    from pyarrow import ipc

    zeros = pa.table({"a": np.zeros(2 * MB), "label": np.zeros(2 * MB)})
    opened = ipc.new_file if kind == "file" else ipc.new_stream
    for name, rows in (("large", 2 * MB), ("small", 100_000)):
        with opened(str(tmp_path / f"{name}.arrow"), zeros.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(zeros, max_chunksize=rows)
    assert scan(tmp_path / "small.arrow").rows == 2 * MB
    with pytest.raises(DataError, match=r"large\.arrow does not fit into memory: a batch of it is, unpacked, 33\.6 MB"):
        scan(tmp_path / "large.arrow")


def test_a_long_text_that_every_row_of_parquet_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.setattr("flatout.data.sources.tables.columnar._BATCH_BYTES", 2 * MB)
    monkeypatch.setattr("flatout.data.sources.tables.encoding._MOST_BLOCK_BYTES", 5 * MB)
    texts = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 20_000])  # as text, 400 MB
    table = pa.table({"a": texts, "label": np.arange(20_000) % 2})
    for stored in (True, False):  # as values that rows name, and as text
        parquet.write_table(table, tmp_path / "t.parquet", store_schema=stored)
        batch, _ = next(scan(tmp_path / "t.parquet").batches())
        assert batch.num_rows == 2 * MB // 20_000
        with pytest.raises(DataError, match="leave out the column with the long values"):
            fo.data.table(str(tmp_path / "t.parquet"), label="label")


@pytest.mark.parametrize("name", ["x" * 5000 + ".csv", "a\0b.csv"])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    for read in (
        lambda: fo.data.table(path, label="label"),
        lambda: fo.data.arrays(path),
        lambda: fo.data.text(path, window=4),
        lambda: fo.data.images(path, size=16),
        lambda: fo.data.sequences(path + ".jsonl"),
        lambda: draft([path], None, tmp_path),
    ):
        with pytest.raises(FlatoutError):
            read()
    (tmp_path / "photos.csv").write_text("path,label\n" + f"{'x' * 5000}.png,a\n" * 30 + "b.png,b\n" * 30)
    draft([str(tmp_path / "photos.csv")], None, tmp_path)  # a table of words, then
    with pytest.raises(DataError, match="File name too long"):
        fo.data.images(str(tmp_path / "photos.csv"), size=16)
