"""A small file of every format that flatout reads, and how it is read: all rows of all of it, as a run would."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flatout as fo

ROWS = 60
Content = Callable[[], bytes]
Reading = Callable[[Path], Any]


@dataclass(frozen=True)
class Format:
    """`name` is that of the file; with `packed`, the mutation is done before the file is compressed half of the time."""

    name: str
    content: bytes
    read: Reading
    pack: Callable[[bytes], bytes] | None = None
    drafted: bool = True  # `flatout new` looks at it as well


def formats() -> dict[str, Format]:
    """Those that the libraries here can make."""
    return {**_tables(), **_arrays(), **_texts(), **_images()}


def _columns() -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    return {
        "age": rng.integers(18, 90, ROWS).tolist(),
        "pay": [None if row % 13 == 0 else round(float(value), 3) for row, value in enumerate(rng.normal(50, 9, ROWS))],
        "town": [("Aachen", "Bern", "Córdoba")[i] for i in rng.integers(0, 3, ROWS)],
        "since": [f"20{row % 24:02d}-0{row % 9 + 1}-1{row % 9}" for row in range(ROWS)],
        "label": [("no", "yes")[i] for i in rng.integers(0, 2, ROWS)],
    }


def _csv(delimiter: str = ",") -> bytes:
    columns = _columns()
    rows = [delimiter.join(columns)]
    rows += [
        delimiter.join("" if value is None else str(value) for value in row) for row in zip(*columns.values(), strict=True)
    ]
    rows[7] = rows[7].replace("Bern", '"Bern, the old"').replace("Aachen", '"Aachen ""new"""') if delimiter == "," else rows[7]
    return ("\n".join(rows) + "\n").encode()


def _json_lines() -> bytes:
    columns = _columns()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _arrow_table() -> Any:
    import pyarrow as pa

    table = pa.table(_columns())
    town = table.schema.get_field_index("town")
    return table.set_column(town, "town", table.column("town").dictionary_encode())


def _read_table(path: Path, on_bad: str = "skip") -> Any:
    return _all_rows(fo.data.table(str(path), label="label", holdout=0.2, on_bad=on_bad))


def _read_strictly(path: Path) -> Any:
    return _read_table(path, "error")


def _query(path: Path) -> Any:
    return _all_rows(fo.data.table(sql=f"select * from '{path.name}'", label="label", base_folder=path.parent))


def _tables() -> dict[str, Format]:
    import pyarrow as pa
    from pyarrow import feather, ipc, parquet

    def written(write: Callable[[Any], Any]) -> bytes:
        out = io.BytesIO()
        write(out)
        return out.getvalue()

    def streamed(out: Any, opened: Any, **options: Any) -> None:
        with opened(out, table.schema, **options) as writer:
            writer.write_table(table, max_chunksize=25)

    def by_arrow(codec: str) -> Callable[[bytes], bytes]:
        def packed(content: bytes) -> bytes:
            sink = io.BytesIO()
            with pa.CompressedOutputStream(pa.PythonFile(sink, "w"), codec) as out:
                out.write(content)
                out.flush()
                whole = sink
                return _closed(out, whole)
            raise AssertionError

        return packed

    def zipped(content: bytes) -> bytes:
        return written(lambda out: _zip(out, {"t.csv": content}))

    table = _arrow_table()
    plain = table.set_column(2, "town", table.column("town").cast(pa.string()))
    lz4 = ipc.IpcWriteOptions(compression="lz4")
    csv, lines = _csv(), _json_lines()
    return {
        "csv": Format("t.csv", csv, _read_table),
        "csv, strict": Format("t.csv", csv, _read_strictly),
        "tsv": Format("t.tsv", _csv("\t"), _read_table),
        "csv.gz": Format("t.csv.gz", csv, _read_table, gzip.compress),
        "csv.bz2": Format("t.csv.bz2", csv, _read_table, bz2.compress),
        "csv.xz": Format("t.csv.xz", csv, _read_table, lzma.compress),
        "csv.zst": Format("t.csv.zst", csv, _read_table, by_arrow("zstd")),
        "csv.lz4": Format("t.csv.lz4", csv, _read_table, by_arrow("lz4")),
        "csv.zip": Format("t.csv.zip", csv, _read_table, zipped),
        "jsonl": Format("t.jsonl", lines, _read_table),
        "jsonl.gz": Format("t.jsonl.gz", lines, _read_table, gzip.compress),
        "parquet": Format("t.parquet", written(lambda out: parquet.write_table(table, out, row_group_size=25)), _read_table),
        "parquet, zstd, plain pages": Format(
            "t.parquet",
            written(lambda out: parquet.write_table(plain, out, compression="zstd", use_dictionary=False)),
            _read_table,
        ),
        "feather": Format("t.feather", written(lambda out: feather.write_feather(plain, out)), _read_table),
        "arrow": Format("t.arrow", written(lambda out: streamed(out, ipc.new_file)), _read_table),
        "arrow stream": Format("t.arrows", written(lambda out: streamed(out, ipc.new_stream, options=lz4)), _read_table),
        "sql, parquet": Format("t.parquet", written(lambda out: parquet.write_table(plain, out)), _query, drafted=False),
        "sql, csv": Format("t.csv", csv, _query, drafted=False),
        "sql, jsonl": Format("t.jsonl", lines, _query, drafted=False),
    }


def _closed(out: Any, whole: io.BytesIO) -> bytes:
    """A PythonFile closes what it writes to: keep the bytes."""
    content: list[bytes] = []
    close = whole.close

    def keep() -> None:
        content.append(whole.getvalue())
        close()

    whole.close = keep  # type: ignore[method-assign]
    out.close()
    return content[0]


def _zip(out: Any, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _arrays() -> dict[str, Format]:
    from safetensors.torch import save

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(ROWS, 4, 5)).astype(np.float32), rng.integers(0, 3, ROWS)

    def written(write: Callable[[Any], Any]) -> bytes:
        out = io.BytesIO()
        write(out)
        return out.getvalue()

    def idx(array: Any, code: int) -> bytes:
        return bytes([0, 0, code, array.ndim]) + bytes(np.array(array.shape, ">i4").tobytes()) + bytes(array.tobytes())

    def whole(path: Path) -> Any:
        return _all_rows(fo.data.arrays(str(path), holdout=0.2, normalize="auto"))

    def beside_y(path: Path) -> Any:
        return _all_rows(fo.data.arrays({"x": str(path), "y": y}, normalize="auto"))

    pixels = rng.integers(0, 256, (ROWS, 7, 7)).astype(np.uint8)
    return {
        "npy": Format("x.npy", written(lambda out: np.save(out, x)), beside_y),
        "npz": Format("xy.npz", written(lambda out: np.savez(out, x=x, y=y)), whole),
        "npz, compressed": Format("xy.npz", written(lambda out: np.savez_compressed(out, x=x, y=y)), whole),
        "safetensors": Format("xy.safetensors", save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}), whole),
        "idx": Format("x-idx3-ubyte", idx(pixels, 8), beside_y),
        "idx.gz": Format("x-idx3-ubyte.gz", idx(x.astype(">f4"), 0x0D), beside_y, gzip.compress),
    }


_WORDS = "the quick brown fox jumps over the lazy dog, écoute-moi: 42 times a day.\n"


def _tokenizer() -> bytes:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator([_WORDS] * 9, trainer)
    return str(tokenizer.to_str()).encode()


def _texts() -> dict[str, Format]:
    text = (_WORDS * 12).encode()
    documents = "".join(json.dumps({"text": _WORDS * (1 + row % 3), "label": row % 2}) + "\n" for row in range(30)).encode()
    ids = np.random.default_rng(2).integers(0, 500, 900).astype(np.uint16)
    tokenizer = _tokenizer()
    npy = io.BytesIO()
    np.save(npy, ids)

    def chars(path: Path) -> Any:
        return _all_rows(fo.data.text(str(path), window=8, on_bad="skip"))

    def as_bytes(path: Path) -> Any:
        return _all_rows(fo.data.text(str(path), window=8, encoding="bytes"))

    def tokens(path: Path) -> Any:
        return _all_rows(fo.data.text(str(path), window=8, eot=0, boundaries="loss"))

    def encoded(path: Path) -> Any:
        (path.parent / "text.txt").write_bytes(text)
        place = path.parent / "text.txt"
        return _all_rows(fo.data.text(str(place), window=8, tokenizer=str(path), cache=path.parent / "cache"))

    def sidecar(path: Path) -> Any:
        ids.tofile(path.parent / "ids.bin")
        return tokens(path.parent / "ids.bin")

    def rows(path: Path) -> Any:
        return _all_rows(fo.data.sequences(str(path), label="label", tokens=512, on_bad="skip"))

    beside = {
        "flatout_tokens": 1, "dtype": "uint16", "count": len(ids), "vocabulary": 500, "largest": 499, "content": "",
        "tokenizer": "ab", "tokenizer_name": "t.json", "eot": 0, "documents": 3, "bad": 0, "bad_examples": [],
    }  # fmt: skip
    return {
        "txt": Format("text.txt", text, chars),
        "txt.gz": Format("text.txt.gz", text, as_bytes, gzip.compress),
        "txt.xz": Format("text.txt.xz", text, chars, lzma.compress),
        "jsonl of documents": Format("documents.jsonl", documents, chars),
        "jsonl of sequences": Format("rows.jsonl", documents, rows),
        "tokens .bin": Format("ids.bin", ids.tobytes(), tokens),
        "tokens .npy": Format("ids.npy", npy.getvalue(), tokens),
        "tokens' sidecar": Format("ids.bin.json", json.dumps(beside).encode(), sidecar, drafted=False),
        "tokenizer.json": Format("tokenizer.json", tokenizer, encoded, drafted=False),
    }


def _images() -> dict[str, Format]:
    from PIL import Image

    rng = np.random.default_rng(3)
    grain = rng.integers(0, 256, (6, 8, 3)).astype(np.uint8)
    picture = Image.fromarray(grain).resize((41, 33), Image.Resampling.BICUBIC)

    def encoded(kind: str, **options: Any) -> bytes:
        out = io.BytesIO()
        picture.save(out, kind, **options)
        return out.getvalue()

    good = encoded("PNG")

    def folder(path: Path) -> Any:
        """The file among good ones, in a folder for each class."""
        home = path.parent / "pictures"
        for name in ("cats", "dogs"):
            (home / name).mkdir(parents=True, exist_ok=True)
            (home / name / "good.png").write_bytes(good)
        path.rename(home / "cats" / path.name)
        draft(home, None)
        return _all_rows(fo.data.images(str(home), size=16, on_bad="skip"))

    def listed(path: Path) -> Any:
        for number in range(4):
            (path.parent / f"{number}.png").write_bytes(good)
        return _all_rows(fo.data.images(str(path), size=16, on_bad="skip"))

    rows = {"path": [f"{number}.png" for number in range(4)], "label": ["a", "b", "a", "b"]}
    listing = "path,label\n" + "".join(f"{name},{label}\n" for name, label in zip(*rows.values(), strict=True))

    def of(name: str, kind: str, **options: Any) -> Format:
        return Format(name, encoded(kind, **options), folder, drafted=False)

    import pyarrow as pa
    from pyarrow import parquet

    columnar = io.BytesIO()
    parquet.write_table(pa.table(rows), columnar)
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "jpeg": of("p.jpg", "JPEG", exif=exif),
        "jpeg, progressive": of("p.jpeg", "JPEG", progressive=True),
        "png": of("p.png", "PNG"),
        "webp": of("p.webp", "WEBP"),
        "webp, lossless": of("p.webp", "WEBP", lossless=True),
        "gif": of("p.gif", "GIF"),
        "bmp": of("p.bmp", "BMP"),
        "tiff": of("p.tiff", "TIFF", compression="tiff_deflate"),
        "list of images, csv": Format("photos.csv", listing.encode(), listed),
        "list of images, parquet": Format("photos.parquet", columnar.getvalue(), listed),
    }


def _all_rows(data: Any) -> None:
    """Each row as it is stored, through all that is done to it on the way to a model."""
    for part in ("train", "validation", "test"):
        source = getattr(data, part)
        if source is None:
            continue
        with fo.loader(data, batch=16, part=part, device="cpu") as batches:
            for _ in batches:
                pass


def draft(path: Path, label: str | None) -> None:
    """What `flatout new` does with it."""
    from flatout.explore.drafting.new import draft as made

    made([str(path)], label, path.parent)
