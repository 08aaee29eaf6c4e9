"""Tables from files: what columns hold, the same rows in every pass, and every kind of bad file named with its cause."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, ipc

from flatout.base.errors import DataError, MissingExtra, UsageError
from flatout.data.files.places import find
from flatout.data.sources.tables.scan import Scan, scan
from flatout.data.sources.tables.schema import wider
from flatout.data.sources.tables.sql import scan_sql

SharedData = Callable[[str], Path]
ADULT = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex",
    "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
]  # fmt: skip


def whole(table: Scan, columns: list[str] | None = None) -> pa.Table:
    return pa.Table.from_batches([batch for batch, _ in table.batches(columns)])


def kinds(table: Scan) -> dict[str, str]:
    return {name: str(kind) for name, kind in table.columns.items()}


def wheres(table: Scan, rows_at_once: int = 65536) -> list[str]:
    return [where.of(i) for batch, where in table.batches(rows_at_once=rows_at_once) for i in range(batch.num_rows)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def written(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


Write = Callable[[str, str | bytes], Path]


# ---- real data ----


def test_adult_as_it_is(shared_data: SharedData) -> None:
    options: dict[str, Any] = dict(header=False, names=ADULT, comment="|", strip=" .", na=["?"], label="income")
    train = scan(shared_data("adult/adult.data.gz"), **options)
    test = scan(shared_data("adult/adult.test.gz"), **options)
    assert (train.rows, test.rows) == (32561, 16281)
    assert train.columns == test.columns
    assert {name for name, kind in train.columns.items() if kind == pa.int64()} == {
        "age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"
    }  # fmt: skip
    for table, over, missing in ((train, 7841, 2399), (test, 3846, 1221)):
        rows = whole(table)
        labels = rows["income"].to_pylist()
        assert set(labels) == {"<=50K", ">50K"}
        assert labels.count(">50K") == over
        assert sum(any(value is None for value in row.values()) for row in rows.to_pylist()) == missing
    _, where = next(test.batches())
    assert where.of(0).endswith("adult.test.gz, line 2")  # below the comment


def test_adult_by_lines_to_skip(shared_data: SharedData) -> None:
    test = scan(shared_data("adult/adult.test.gz"), header=False, names=ADULT, skip_lines=1, strip=True)
    assert test.rows == 16281
    first = whole(test).slice(0, 1).to_pylist()[0]
    assert (first["age"], first["workclass"], first["income"]) == (25, "Private", "<=50K.")


def test_bank_marketing_has_semicolons(shared_data: SharedData) -> None:
    table = scan(shared_data("bank-marketing/bank-full.csv.gz"), label="y")
    assert table.rows == 45211
    assert kinds(table)["balance"] == "int64"
    assert kinds(table)["job"] == "string"
    assert whole(table, ["y"])["y"].to_pylist().count("yes") == 5289


def test_covertype_head(shared_data: SharedData, tmp_path: Path) -> None:
    with lzma.open(shared_data("covertype/covtype.csv.xz")) as file:
        head = b"".join(file.readline() for _ in range(20_001))
    (tmp_path / "cover.csv.xz").write_bytes(lzma.compress(head, preset=0))
    table = scan(tmp_path / "cover.csv.xz", label="Cover_Type")
    assert table.rows == 20_000
    assert set(kinds(table).values()) == {"int64"}
    plain = np.loadtxt(head.decode().splitlines()[1:], delimiter=",", dtype=np.int64)
    assert (np.stack([column.to_numpy() for column in whole(table).columns], 1) == plain).all()


def test_taxi_parquet(shared_data: SharedData) -> None:
    folder = shared_data("nyc-taxi")
    table = scan("*.parquet", base_folder=folder, label="total_amount")
    assert table.rows == 73746 + 77593
    assert table.blocks() == (73746, 77593)
    files = sorted(folder.glob("*.parquet"))
    assert whole(table).equals(pa.concat_tables([pq.read_table(file) for file in files]))
    last_batch, where = list(table.batches(["total_amount"], rows_at_once=10_000))[-1]
    assert last_batch.schema.names == ["total_amount"]
    assert where.of(last_batch.num_rows - 1) == f"{files[1].name}, row 77593"


def test_titanic_tickets_are_text(shared_data: SharedData) -> None:
    """Three of four tickets are numbers; that is no mistake of the others."""
    table = scan(shared_data("titanic/train.csv"), label="Survived")
    assert (kinds(table)["Ticket"], kinds(table)["Age"], kinds(table)["Cabin"]) == ("string", "double", "string")
    assert whole(table)["Cabin"].null_count == 687


def test_dates_are_dates(shared_data: SharedData) -> None:
    assert kinds(scan(shared_data("ett/ETTh1.csv.gz")))["date"] == "timestamp[s]"


# ---- formats ----


ROWS = "n,word,x\n1,a,0.5\n2,b,\n3,,1.5\n"
EXPECTED = {"n": [1, 2, 3], "word": ["a", "b", None], "x": [0.5, None, 1.5]}


def test_every_compression(write: Write, tmp_path: Path) -> None:
    content = ROWS.encode()
    write("a.csv", content)
    write("a.csv.gz", gzip.compress(content[:9]) + gzip.compress(content[9:]))  # two members, as log tools append them
    write("a.csv.bz2", bz2.compress(content))
    write("a.csv.xz", lzma.compress(content))
    for suffix, codec in ((".zst", "zstd"), (".lz4", "lz4")):
        with pa.CompressedOutputStream(str(tmp_path / f"a.csv{suffix}"), codec) as file:
            file.write(content)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("folder/", "")
        archive.writestr("folder/a.csv", content)
    names = ["a.csv", "a.csv.gz", "a.csv.bz2", "a.csv.xz", "a.csv.zst", "a.csv.lz4", "a.zip"]
    for name in names:
        table = scan(name, base_folder=tmp_path)
        assert whole(table).to_pydict() == EXPECTED, name
        assert list(table.columns.values()) == [pa.int64(), pa.string(), pa.float64()]
        assert wheres(table) == [f"{name}, line {line}" for line in (2, 3, 4)]


def test_a_zip_with_two_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.csv", ROWS)
        archive.writestr("b.csv", ROWS)
    with pytest.raises(DataError, match=r"a\.zip holds 2 files"):
        scan(tmp_path / "a.zip")


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_found(write: Write, delimiter: str) -> None:
    path = write("a.csv", ROWS.replace(",", delimiter))
    assert whole(scan(path)).to_pydict() == EXPECTED


def test_a_delimiter_inside_of_values_is_not_taken(write: Write) -> None:
    path = write("a.csv", "name;text\n1;a, b\n2;c, d\n3;e\n")
    assert whole(scan(path)).to_pydict() == {"name": [1, 2, 3], "text": ["a, b", "c, d", "e"]}


def test_one_column(write: Write) -> None:
    assert whole(scan(write("a.csv", "x\n1\n2\n"))).to_pydict() == {"x": [1, 2]}


def test_tsv_by_name_and_by_format(write: Write) -> None:
    content = "a;b\tc\n1;5\tx\n2;6\ty\n"  # semicolons cut it as well
    for table in (scan(write("a.tsv", content)), scan(write("a.tsv.gz", gzip.compress(content.encode())))):
        assert whole(table).to_pydict() == {"a;b": ["1;5", "2;6"], "c": ["x", "y"]}
    assert list(scan(write("b.dat", content), format="tsv").columns) == ["a;b", "c"]
    assert list(scan(write("b.dat", content), delimiter=";").columns) == ["a", "b\tc"]


def test_byte_order_mark_and_windows_line_ends(write: Write) -> None:
    path = write("a.csv", b"\xef\xbb\xbf" + ROWS.replace("\n", "\r\n").encode())
    assert whole(scan(path, label="n")).to_pydict() == EXPECTED
    path = write("b.csv", ROWS.encode("utf-16"))
    assert whole(scan(path, label="n")).to_pydict() == EXPECTED


def test_quoted_values(write: Write) -> None:
    text = 'n,text\n1,"two\nlines"\n2,"a ""quote"", and a comma"\n3,5" pipe\n\n4,"three\r\n\r\nlines"\n5,plain\n'
    table = scan(write("a.csv", text))
    assert whole(table)["text"].to_pylist() == [
        "two\nlines",
        'a "quote", and a comma',
        '5" pipe',
        "three\r\n\r\nlines",
        "plain",
    ]
    assert [where.rsplit(" ", 1)[1] for where in wheres(table)] == ["2", "4", "5", "7", "10"]
    assert [where.rsplit(" ", 1)[1] for where in reversed(wheres(table))] == ["10", "7", "5", "4", "2"]


def test_a_header_of_two_lines(write: Write) -> None:
    table = scan(write("a.csv", 'n,"two\nlines"\n1,2\n'))
    assert list(table.columns) == ["n", "two\nlines"]
    assert wheres(table)[0].endswith("line 3")


def test_no_header(write: Write) -> None:
    path = write("a.csv", "1,a\n2,b\n")
    assert whole(scan(path, header=False, names=["n", "word"])).to_pydict() == {"n": [1, 2], "word": ["a", "b"]}
    assert list(scan(path, header=False).columns) == ["column_1", "column_2"]
    with pytest.raises(DataError, match=r"2 columns.* 3"):
        scan(path, header=False, names=["n", "word", "x"])
    with pytest.raises(UsageError, match="set header: false"):
        scan(path, names=["n", "word"])


def test_a_forgotten_header_is_noticed(write: Write) -> None:
    with pytest.raises(DataError, match=r"looks like a row.*1, 2\.5.*header: false"):
        scan(write("a.csv", "1,2.5\n2,3.5\n"))


def test_a_very_wide_table(write: Write) -> None:
    names = [f"a_column_with_a_rather_long_name_{i}" for i in range(10_000)]
    table = scan(write("a.csv", ",".join(names) + "\n" + ",".join(["1"] * 10_000) + "\n"), columns=names[-2:])
    assert whole(table).to_pydict() == {names[-2]: [1], names[-1]: [1]}


def test_columns_without_a_name_get_one(write: Write) -> None:
    assert list(scan(write("a.csv", ",x\n0,1.5\n1,2.5\n")).columns) == ["column_1", "x"]


def test_arrow_files(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(10)), "word": pa.array(["a", None] * 5).dictionary_encode()})
    with ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=4)
    with ipc.new_stream(str(tmp_path / "b.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=4)
    feather.write_feather(table, str(tmp_path / "c.feather"), compression="zstd", chunksize=4)
    for name in ("a.arrow", "b.arrow", "c.feather"):
        found = scan(tmp_path / name, label="n")
        assert kinds(found) == {"n": "int64", "word": "string"}
        assert (found.rows, found.blocks()) == (10, (4, 4, 2))
        assert whole(found).to_pydict() == table.to_pydict()
        assert wheres(found, 3)[-1].endswith(f"{name}, row 10")
        assert whole(found, ["word", "n"]).column_names == ["word", "n"]


def test_json_lines(write: Write) -> None:
    path = write("a.jsonl", '{"n": 1, "word": "a"}\n\n{"n": 2.5, "word": null}\n{"word": "c"}\n')
    table = scan(path)
    assert kinds(table) == {"n": "double", "word": "string"}
    assert whole(table).to_pydict() == {"n": [1.0, 2.5, None], "word": ["a", None, "c"]}
    assert [where.rsplit(" ", 1)[1] for where in wheres(table)] == ["1", "3", "4"]
    bad = write("b.jsonl", '{"n": 1}\n{"n": 2\n{"n": "x"}\n{"n": 4}\n')
    with pytest.raises(DataError, match=r"b\.jsonl, line 2: not JSON"):
        scan(bad)
    left = scan(bad, on_bad="skip")
    assert whole(left).to_pydict() == {"n": [1, 4]}
    assert left.bad.count == 2
    assert "line 3: column 'n' is int64" in (left.bad.summary() or "")
    assert [where.rsplit(" ", 1)[1] for where in wheres(left)] == ["1", "4"]


def test_parquet_types_become_plain(tmp_path: Path) -> None:
    from decimal import Decimal

    table = pa.table(
        {
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(8, 2)),
            "word": pa.array(["a", "b"], pa.large_string()),
            "half": pa.array(np.array([0.5, 2], np.float16)),
            "day": pa.array([0, 86_400_000], pa.date64()),
        }
    )
    with ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as file:
        file.write_table(table)
    found = scan(tmp_path / "a.arrow")
    assert kinds(found) == {"price": "double", "word": "string", "half": "float", "day": "date32[day]"}
    assert whole(found)["price"].to_pylist() == [1.5, None]


def test_a_name_that_says_nothing(tmp_path: Path, write: Write) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "part-0000")
    assert whole(scan(tmp_path / "part-0000")).to_pydict() == {"n": [1]}
    assert whole(scan(write("data", ROWS))).to_pydict() == EXPECTED
    assert whole(scan(write("lines", '{"n": 1}\n'))).to_pydict() == {"n": [1]}


# ---- many files, many passes ----


def test_many_files_are_one_table(write: Write, tmp_path: Path) -> None:
    write("clicks/part-1.csv", "n,word\n1,a\n2,b\n")
    write("clicks/part-2.csv", "word,n\nc,3.5\n")  # another order, another type
    write("clicks/part-3.csv", "n,word\n")  # nobody clicked
    write("clicks/.hidden.csv", "x\n1\n")
    write("clicks/_SUCCESS", "")
    expected = {"n": [1.0, 2.0, 3.5], "word": ["a", "b", "c"]}
    for paths in ("clicks", "clicks/*.csv", ["clicks/part-1.csv", "clicks/part-[23].csv"]):
        table = scan(paths, base_folder=tmp_path)
        assert whole(table).to_pydict() == expected
        assert (table.rows, table.blocks()) == (3, (2, 1))
        assert wheres(table) == ["clicks/part-1.csv, line 2", "clicks/part-1.csv, line 3", "clicks/part-2.csv, line 2"]


def test_passes_are_equal_and_columns_can_be_chosen(write: Write) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{i},{rng.integers(100)},w{rng.integers(9)}" for i in range(5000)]
    table = scan(write("a.csv", "i,n,w\n" + "\n".join(lines)))
    first = whole(table)
    assert whole(table).equals(first)
    assert whole(table, ["w", "i"]).equals(first.select(["w", "i"]))
    batches = [batch for batch, _ in table.batches(rows_at_once=300)]
    assert max(batch.num_rows for batch in batches) == 300
    assert pa.Table.from_batches(batches).to_pydict() == first.to_pydict()
    with pytest.raises(DataError, match="no column 'm'; known: i, n, w"):
        next(table.batches(["m"]))


def test_a_pass_that_is_given_up_harms_nothing(write: Write) -> None:
    path = write("a.csv", "i,text\n" + "".join(f"{i},{'x' * 1000}\n" for i in range(20_000)))  # several blocks
    table = scan(path)
    for _ in range(3):
        batches = table.batches(rows_at_once=10)
        next(batches)
        batches.close()
    assert sum(batch.num_rows for batch, _ in table.batches()) == 20_000


def test_fingerprint_follows_content_and_options(write: Write, tmp_path: Path) -> None:
    first = scan(write("a.csv", ROWS)).fingerprint()
    assert scan(tmp_path / "a.csv").fingerprint() == first
    assert scan(tmp_path / "a.csv", text=["n"]).fingerprint() != first
    assert scan(tmp_path / "a.csv", na=["a"]).fingerprint() != first
    assert scan(write("a.csv", ROWS.replace("0.5", "0.6"))).fingerprint() != first


def test_a_file_that_changes_meanwhile_is_noticed(write: Write) -> None:
    path = write("a.csv", ROWS)
    table = scan(path)
    write("a.csv", ROWS + "4,d,1\n")
    with pytest.raises(DataError, match=r"a\.csv had 3 rows .* now has 4"):
        whole(table)


def test_remote_files(write: Write, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/clicks/part-1.csv", ROWS.encode())
    memory.pipe("/clicks/part-2.csv.gz", gzip.compress(ROWS.encode()))
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    memory.pipe("/other/a.parquet", (tmp_path / "a.parquet").read_bytes())
    try:
        for paths in ("memory://clicks", "memory://clicks/*", ["memory://clicks/part-1.csv", "memory://clicks/part-2.csv.gz"]):
            table = scan(paths, base_folder=tmp_path)
            assert whole(table)["n"].to_pylist() == [1, 2, 3, 1, 2, 3]
            assert wheres(table)[-1] == "memory://clicks/part-2.csv.gz, line 4".replace("://", ":///")
        assert whole(scan("memory://other/a.parquet")).to_pydict() == {"n": [1, 2]}
        before = scan("memory://clicks/part-1.csv").fingerprint()
        memory.pipe("/clicks/part-1.csv", (ROWS + "4,d,1\n").encode())
        assert scan("memory://clicks/part-1.csv").fingerprint() != before
        with pytest.raises(DataError, match=r"memory://clicks/\*\.tsv matches no file"):
            scan("memory://clicks/*.tsv")
        with pytest.raises(DataError, match="memory://nowhere does not exist"):
            scan("memory://nowhere")
    finally:
        memory.rm("/clicks", recursive=True)
        memory.rm("/other", recursive=True)
    with pytest.raises(DataError, match=r"nosuch://x.* can't be reached"):
        scan("nosuch://x/a.csv")


# ---- what cells are ----


def test_whole_numbers_widen_over_the_whole_column(write: Write) -> None:
    rows = ["1"] * 70_000 + ["2.5"] + ["3"] * 10
    table = scan(write("a.csv", "x\n" + "\n".join(rows)))
    assert kinds(table) == {"x": "double"}
    batches = [batch for batch, _ in table.batches(rows_at_once=1000)]
    assert {str(batch.schema.field("x").type) for batch in batches} == {"double"}
    assert pa.Table.from_batches(batches)["x"].to_pylist() == [float(row) for row in rows]


def test_dates_widen_to_moments(write: Write) -> None:
    rows = ["2020-01-02"] * 70_000 + ["2020-01-02 03:04:05.5"]
    table = scan(write("a.csv", "when\n" + "\n".join(rows)))
    assert kinds(table) == {"when": "timestamp[us]"}


def test_kinds_of_cells(write: Write) -> None:
    content = (
        "int,float,flag,day,utc,word,code,hex,gone,spaced\n"
        "1,1e3,true,2020-01-02,2020-01-02T03:04:05Z,NA,007,0x10,NA, 5\n"
        "-2,NaN,FALSE,,2020-01-02T03:04:05+01:00,b,012,0x11,, 6 \n"
    )
    table = scan(write("a.csv", content), text=["code"])
    assert kinds(table) == {
        "int": "int64", "float": "double", "flag": "bool", "day": "date32[day]", "utc": "timestamp[s, tz=UTC]",
        "word": "string", "code": "string", "hex": "string", "gone": "null", "spaced": "int64",
    }  # fmt: skip
    rows = whole(table)
    assert rows["float"].to_pylist() == [1000.0, None]
    assert rows["word"].to_pylist() == ["NA", "b"]  # among texts it is a value like any other
    assert rows["code"].to_pylist() == ["007", "012"]
    assert rows["gone"].to_pylist() == [None, None]
    assert rows["spaced"].to_pylist() == [5, 6]
    assert [moment.hour for moment in rows["utc"].to_pylist()] == [3, 2]


def test_values_that_mean_missing(write: Write) -> None:
    table = scan(write("a.csv", "n,word\n1,?\n-999,b\n3,-\n"), na=["?", "-999", "-"])
    assert whole(table).to_pydict() == {"n": [1, None, 3], "word": [None, "b", None]}
    assert kinds(table)["n"] == "int64"


def test_a_column_that_starts_empty(write: Write) -> None:
    rows = [","] * 70_000 + ["1,a"] * 10
    table = scan(write("a.csv", "x,w\n" + "\n".join(rows)))
    assert kinds(table) == {"x": "int64", "w": "string"}
    assert whole(table)["x"].to_pylist()[-11:] == [None, *[1] * 10]


def test_decimal_commas(write: Write) -> None:
    path = write("a.csv", "n;price;text\n1;1,5;a, b\n2;-2,25;c\n3;7;d\n")
    with pytest.raises(DataError, match=r"a\.csv: column 'price' .*'1,5'.*decimal: ','"):
        scan(path)
    table = scan(path, decimal=",")
    assert whole(table).to_pydict() == {"n": [1, 2, 3], "price": [1.5, -2.25, 7.0], "text": ["a, b", "c", "d"]}
    assert whole(scan(path, text=["price"]))["price"].to_pylist() == ["1,5", "-2,25", "7"]
    with pytest.raises(DataError, match=r"such as '1,234,567'.*thousands"):
        scan(write("b.csv", 'n,m\n"1,234,567",1\n"2,345.5",2\n'))


# ---- bad input ----


def test_ragged_rows(write: Write) -> None:
    path = write("a.csv", 'a,b\n1,2\n"x\ny",3\n4\n5,6,7\n8,9\n')
    with pytest.raises(DataError, match=r"a\.csv, line 5: expected 2 values, got 1: '4'"):
        scan(path)
    table = scan(path, on_bad="skip")
    assert whole(table)["b"].to_pylist() == [2, 3, 9]
    assert [where.rsplit(" ", 1)[1] for where in wheres(table)] == ["2", "3", "7"]
    assert table.bad.count == 2
    assert "line 6: expected 2 values, got 3: '5,6,7'" in (table.bad.summary() or "")
    whole(table)
    assert table.bad.count == 2  # another pass finds the same ones again, and does not count them again


def test_ragged_rows_far_apart_keep_line_numbers(write: Write) -> None:
    lines = [f"{i},{'x' * 200}" for i in range(100_000)]  # three blocks
    for bad in (5, 50_000, 99_999):
        lines[bad] = "oops"
    table = scan(write("a.csv", "i,text\n" + "\n".join(lines)), on_bad="skip")
    assert table.rows == 99_997
    for batch, where in table.batches(["i"]):
        for row in (0, batch.num_rows - 1):
            assert where.of(row).endswith(f"line {batch['i'][row].as_py() + 2}")
    assert [example.split(": ")[0].rsplit(" ", 1)[1] for example in table.bad.examples] == ["7", "50002", "100001"]


def test_wrong_encoding(write: Write) -> None:
    content = "n,word\n" + "1,plain\n" * 10 + "2,café\n"
    path = write("a.csv", content.encode("latin-1"))
    byte = content.index("é")
    with pytest.raises(
        DataError, match=rf"a\.csv is not UTF-8 text: line 12 has the byte 0xe9 \(byte {byte} .*encoding: latin-1"
    ):
        scan(path)
    assert whole(scan(path, encoding="latin-1"))["word"].to_pylist()[-1] == "café"
    with pytest.raises(DataError, match="is not utf-16 text"):
        scan(write("b.csv", content.encode("latin-1")[:-1]), encoding="utf-16")
    with pytest.raises(UsageError, match="'latin-99'"):
        scan(path, encoding="latin-99")


def test_utf16_without_a_mark_is_not_taken_for_text(write: Write) -> None:
    with pytest.raises(DataError, match=r"zero bytes.*encoding: utf-16"):
        scan(write("a.csv", ROWS.encode("utf-16-le")))
    assert whole(scan(write("a.csv", ROWS.encode("utf-16-le")), encoding="utf-16-le")).to_pydict() == EXPECTED


def test_a_column_changes_type_on_row_900000(write: Write) -> None:
    path = write("a.csv", "n,m\n" + "12,1\n" * 899_999 + "twelve,1\n" + "12,1\n" * 10)
    with pytest.raises(DataError, match=r"a\.csv, line 900001: column 'n' is int64.*'twelve'.*categorical.*na"):
        scan(path)
    table = scan(path, on_bad="skip")
    assert (table.rows, table.bad.count) == (900_009, 1)
    assert sum(batch.num_rows for batch, _ in table.batches(["m"])) == 900_009  # gone whichever columns are read
    assert scan(path, text=["n"]).rows == 900_010
    assert scan(path, columns=["m"]).rows == 900_010  # a column that isn't read is never bad


def test_a_column_turns_to_text_for_good(write: Write) -> None:
    path = write("a.csv", "n\n" + "1\n" * 100_000 + "x\n" * 100_000)
    with pytest.raises(DataError, match=r"line 100002: column 'n' is int64.*'x'"):
        scan(path)


def test_the_second_file_turns_to_text(write: Write, tmp_path: Path) -> None:
    write("1.csv", "n\n1\n2\n")
    write("2.csv", "n\n3.5\nx\n")
    with pytest.raises(DataError, match=r"2\.csv, line 3: column 'n' is double.*'x'"):
        scan("*.csv", base_folder=tmp_path)
    table = scan("*.csv", base_folder=tmp_path, on_bad="skip")
    assert whole(table)["n"].to_pylist() == [1.0, 2.0, 3.5]


def test_duplicate_headers(write: Write) -> None:
    with pytest.raises(DataError, match=r"a\.csv: columns 1 and 3 are both called 'age'"):
        scan(write("a.csv", "age,x,age\n1,2,3\n"))


def test_empty_files(write: Write) -> None:
    with pytest.raises(DataError, match=r"a\.csv is empty"):
        scan(write("a.csv", ""))
    with pytest.raises(DataError, match=r"b\.csv is empty"):
        scan(write("b.csv", "\n\n"))
    with pytest.raises(DataError, match=r"c\.csv has column names and no rows"):
        scan(write("c.csv", "a,b\n"))
    with pytest.raises(DataError, match=r"d\.parquet is empty \(0 bytes\)"):
        scan(write("d.parquet", ""))
    with pytest.raises(DataError, match=r"e\.csv has no good row: 1 bad"):
        scan(write("e.csv", "a,b\n1\n"), on_bad="skip")
    with pytest.raises(DataError, match=r"f\.jsonl has no rows"):
        scan(write("f.jsonl", "\n"))


def test_missing_label(write: Write) -> None:
    with pytest.raises(DataError, match=r"a\.csv has no column 'Income' for the label; did you mean 'income'\?"):
        scan(write("a.csv", "age,income\n1,2\n"), label="Income")
    with pytest.raises(DataError, match="text: the table has no column 'ag'; did you mean 'age'"):
        scan(write("a.csv", "age,income\n1,2\n"), text=["ag"])
    with pytest.raises(DataError, match=r"a\.csv has no column 'ag'; did you mean 'age'"):
        scan(write("a.csv", "age,income\n1,2\n"), columns=["ag"])


def test_an_open_quote(write: Write) -> None:
    rows = "".join(f"{i},x\n" for i in range(50))
    for opened in ('7,"never closed\n', '"never closed,7\n'):
        path = write("a.csv", "n,word\n" + rows + opened + rows)
        for policy in ("error", "skip"):
            with pytest.raises(DataError, match=r"a\.csv, line 52: .*never closed"):
                scan(path, on_bad=policy)


def test_an_open_quote_in_large_files(write: Write) -> None:
    path = write("a.csv", 'n,word\n1,"open\n' + "1,xxxxxxxxxxxxxxxxxx\n" * 10_000)
    with pytest.raises(DataError, match=r"a\.csv, line 2: .*never closed"):
        scan(path)
    path = write("a.csv", "n,word\n" + "1,x\n" * 100_000 + '1,"open\n' + "1,xxxxxxxxxxxxxxxxxx\n" * 900_000)
    with pytest.raises(DataError, match=r"longer than 8 MB: .*never closed"):
        scan(path)


def test_long_values_keep_line_numbers(write: Write) -> None:
    table = scan(write("a.csv", 'n,text\n1,"' + "long\n" * 100_000 + '"\n2,short\n'))
    assert wheres(table)[1].endswith("line 100003")


def test_damaged_compressed_files(write: Write, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for rows in (20, 200_000):  # cut within the first block, and after it
        content = ("n,word\n" + "".join(f"{n},a\n" for n in rng.integers(0, 10**9, rows))).encode()
        with pa.CompressedOutputStream(str(tmp_path / "whole.zst"), "zstd") as file:
            file.write(content)
        whole_files = {
            ".gz": gzip.compress(content, 1),
            ".xz": lzma.compress(content, preset=0),
            ".bz2": bz2.compress(content, 1),
            ".zst": (tmp_path / "whole.zst").read_bytes(),
        }
        for suffix, packed in whole_files.items():
            with pytest.raises(DataError, match=rf"a\.csv\{suffix} can't be read to its end, it is cut off or damaged"):
                scan(write(f"a.csv{suffix}", packed[: len(packed) * 9 // 10]))


def test_parquet_files_that_differ(tmp_path: Path) -> None:
    def parquet(name: str, **columns: Any) -> None:
        pq.write_table(pa.table(columns), tmp_path / name)

    parquet("a.parquet", n=pa.array([1], pa.int32()), x=pa.array([0.5], pa.float32()), w=["a"])
    parquet("b.parquet", n=pa.array([2**40]), x=pa.array([0.25], pa.float64()), w=pa.array([None], pa.null()))
    table = scan(["a.parquet", "b.parquet"], base_folder=tmp_path)
    assert kinds(table) == {"n": "int64", "x": "double", "w": "string"}
    assert whole(table).to_pydict() == {"n": [1, 2**40], "x": [0.5, 0.25], "w": ["a", None]}

    parquet("c.parquet", n=[1], x=[0.5])
    with pytest.raises(DataError, match=r"c\.parquet lacks column 'w', which a\.parquet has"):
        scan(["a.parquet", "c.parquet"], base_folder=tmp_path)
    with pytest.raises(DataError, match=r"a\.parquet has column 'w', .*c\.parquet"):
        scan(["c.parquet", "a.parquet"], base_folder=tmp_path)
    assert scan(["c.parquet", "a.parquet"], columns=["x", "n"], base_folder=tmp_path).rows == 2

    parquet("d.parquet", n=["one"], x=[0.5], w=["a"])
    with pytest.raises(DataError, match=r"column 'n' is int32 in a\.parquet and text in d\.parquet"):
        scan(["a.parquet", "d.parquet"], base_folder=tmp_path)


def test_types_widen_without_loss() -> None:
    assert wider(pa.int32(), pa.int64()) == pa.int64()
    assert wider(pa.uint8(), pa.int8()) == pa.int16()
    assert wider(pa.uint32(), pa.int8()) == pa.int64()
    assert wider(pa.float32(), pa.float64()) == pa.float64()
    assert wider(pa.float32(), pa.int16()) == pa.float32()
    assert wider(pa.float32(), pa.int32()) == pa.float64()
    assert wider(pa.timestamp("s"), pa.timestamp("us")) == pa.timestamp("us")
    assert wider(pa.date32(), pa.timestamp("ms")) == pa.timestamp("ms")
    assert wider(pa.timestamp("s"), pa.timestamp("s", "UTC")) is None
    assert wider(pa.bool_(), pa.int64()) is None
    assert wider(pa.string(), pa.date32()) is None


def test_files_that_are_not_what_they_are_called(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet is not Parquet: it starts with the text 'n,word.*format: csv"):
        scan(write("a.parquet", ROWS))
    assert whole(scan(tmp_path / "a.parquet", format="csv")).to_pydict() == EXPECTED
    with pytest.raises(DataError, match=r"a\.arrow is not Arrow: it starts with the text"):
        scan(write("a.arrow", ROWS))
    pq.write_table(pa.table({"n": list(range(1000))}), tmp_path / "b.csv")
    with pytest.raises(DataError, match=r"b\.csv .*parquet file, .*csv.*format: parquet"):
        scan(tmp_path / "b.csv")
    good = (tmp_path / "b.csv").read_bytes()
    with pytest.raises(DataError, match=r"c\.parquet is a damaged Parquet file"):
        scan(write("c.parquet", good[: len(good) // 2]))


def test_formats_are_not_mixed(write: Write, tmp_path: Path) -> None:
    write("a.csv", ROWS)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"a\.csv is csv and b\.parquet is parquet"):
        scan(["a.csv", "b.parquet"], base_folder=tmp_path)
    with pytest.raises(UsageError, match=r"are for CSV.*b\.parquet is parquet"):
        scan(tmp_path / "b.parquet", delimiter=";")
    with pytest.raises(UsageError, match=r"'parket' is not one of .* did you mean 'parquet'"):
        scan(tmp_path / "b.parquet", format="parket")
    with pytest.raises(UsageError, match="on_bad is 'error' or 'skip'"):
        scan(tmp_path / "b.parquet", on_bad="ignore")


def test_paths_that_match_nothing(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"table: clicks/\*\.csv matches no file \(looked for in "):
        scan("clicks/*.csv", base_folder=tmp_path)
    with pytest.raises(DataError, match=r"table: clicks\.csv does not exist"):
        scan("clicks.csv", base_folder=tmp_path)
    write("folder/readme.md", "x")
    with pytest.raises(DataError, match=r"the folder folder has no file that ends in \.csv"):
        scan("folder", base_folder=tmp_path)
    with pytest.raises(DataError, match="no files were given"):
        scan([])
    write("a.csv", ROWS)
    with pytest.raises(DataError, match=r"a\.csv .*twice"):
        scan(["a.csv", "*.csv"], base_folder=tmp_path)
    with pytest.raises(DataError, match="expected a path, a glob, a folder or a URL, got 3"):
        scan([3])  # type: ignore[list-item]


def test_a_folder_with_brackets_in_its_name(write: Write, tmp_path: Path) -> None:
    write("runs [old]/a.csv", ROWS)
    assert [place.name for place in find("*.csv", tmp_path / "runs [old]")] == ["a.csv"]
    assert scan("runs [old]/a.csv", base_folder=tmp_path).rows == 3


# ---- SQL ----


def test_sql_reads_files_from_the_base_folder(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(100)), "w": ["a", "b"] * 50}), tmp_path / "x.parquet")
    table = scan_sql("select n, w, n * 1.5 as m from 'x.parquet' where n >= 10;", tmp_path, label="m")
    assert table.rows == 90
    assert kinds(table) == {"n": "int64", "w": "string", "m": "double"}
    first = whole(table)
    assert first["m"].to_pylist() == [n * 1.5 for n in range(10, 100)]
    assert whole(table).equals(first)
    assert whole(table, ["w"]).column_names == ["w"]
    assert [batch.num_rows for batch, _ in table.batches(rows_at_once=40)] == [40, 40, 10]
    assert scan_sql("select n, w, n * 1.5 as m from 'x.parquet' where n >= 10", tmp_path).fingerprint() == table.fingerprint()
    pq.write_table(pa.table({"n": list(range(1, 101)), "w": ["a", "b"] * 50}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="the query gave other rows than the first time"):
        whole(table)


def test_sql_groups_have_a_fixed_order(shared_data: SharedData) -> None:
    folder = shared_data("nyc-taxi")
    table = scan_sql("select distinct total_amount from '*.parquet'", folder)
    assert whole(table).equals(whole(table))
    assert table.rows == 4216


def test_sql_that_draws_at_random_is_refused() -> None:
    table = scan_sql("select random() as r from range(10)")
    with pytest.raises(DataError, match=r"is random. Add an order by"):
        whole(table)


def test_sql_only_reads(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a select, which only reads; got copy"):
        scan_sql("copy (select 1 as n) to 'out.csv'", tmp_path)
    with pytest.raises(UsageError, match="got 2 statements"):
        scan_sql("select 1 as n; select 2 as n", tmp_path)
    assert not list(tmp_path.iterdir())


def test_sql_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sql: Parser Error"):
        scan_sql("selec 1", tmp_path)
    with pytest.raises(DataError, match=r"sql: .*nope\.parquet"):
        scan_sql("select * from 'nope.parquet'", tmp_path)
    with pytest.raises(DataError, match="gives no rows"):
        scan_sql("select 1 as n where false", tmp_path)
    with pytest.raises(DataError, match="no column 'm' for the label"):
        scan_sql("select 1 as n", tmp_path, label="m")
    with pytest.raises(DataError, match=r"sql: .*abc"):
        scan_sql("select case when range > 100000 then 'abc' else '1' end::int as n from range(200000)", tmp_path)
    n = [1, 2]  # noqa: F841
    with pytest.raises(DataError, match="sql: "):
        scan_sql("select * from n", tmp_path)  # a variable of this program is no table


def test_sql_without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"needs duckdb, which is not installed: pip install 'flatout\[sql\]'"):
        scan_sql("select 1 as n")
