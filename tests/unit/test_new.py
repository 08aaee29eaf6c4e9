"""`flatout new`: the recipe that it writes for every kind of file runs as it is, and says what was seen."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import Answer, Command

from flatout.data.files.places import LocalFile
from flatout.data.sources.tables.dialect import found_dialect
from flatout.explore.drafting.sample import FileStart
from flatout.explore.drafting.writing import DraftLine, page, shown
from flatout.recipe.load import read_recipe

Shared = Callable[[str], Path]


@pytest.fixture
def drafted(desk: Path, flatout: Command) -> Callable[..., tuple[Answer, dict[str, Any]]]:
    """`drafted("clicks.csv")`: what is printed and what the recipe holds, once it has trained five steps."""

    def draft(*arguments: str) -> tuple[Answer, dict[str, Any]]:
        answer = flatout("new", *arguments)
        assert answer.code == 0, answer.err
        assert all(len(line) <= 100 for line in answer.out.splitlines()), answer.out
        ran = flatout("run", "recipe.yaml", "budget=5 steps", "--quiet")
        assert ran.code == 0, ran.err + (desk / "recipe.yaml").read_text()
        assert "after 5 steps" in ran.out
        return answer, yaml.safe_load((desk / "recipe.yaml").read_text())

    return draft


def people(rows: int = 120) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    ages = random.integers(18, 80, rows)
    return [
        {"id": 1000 + i, "age": age, "town": "ABC"[i % 3], "score": round(score, 3), "rich": "yes" if age > 45 else "no"}
        for i, (age, score) in enumerate(zip(ages.tolist(), random.normal(size=rows).tolist(), strict=True))
    ]


def csv_of(rows: list[dict[str, Any]], delimiter: str = ",", header: bool = True) -> str:
    lines = [delimiter.join(map(str, row.values())) for row in rows]
    return "\n".join([delimiter.join(rows[0]), *lines] if header else lines) + "\n"


# ---- tables ----


def test_a_csv(desk: Path, drafted: Any) -> None:
    (desk / "people.csv").write_text(csv_of(people()))
    answer, recipe = drafted("people.csv", "--label", "rich")
    assert recipe["data"] == {"table": "people.csv", "label": "rich", "drop": ["id"], "holdout": 0.2}
    assert recipe["objective"] == "binary" and "mlp" in recipe["model"]
    assert "people.csv: a table of 120 rows and 5 columns" in answer.out
    assert "id: another value in every row (120 values); left out" in answer.out
    assert "flatout run recipe.yaml" in answer.out and "flatout data recipe.yaml" in answer.out
    text = (desk / "recipe.yaml").read_text()
    assert "# id: another value in every row" in text
    assert text.startswith("# Written by: flatout new people.csv --label rich\n")


def test_a_table_without_header_with_semicolons_spaces_and_question_marks(desk: Path, drafted: Any) -> None:
    rows = people()
    for row in rows[::10]:
        row["age"] = row["town"] = "?"  # in the first row too
    (desk / "people.data").write_text(csv_of(rows, "; ", header=False))
    answer, recipe = drafted("people.data", "--label", "5")
    data = recipe["data"]
    assert (data["delimiter"], data["header"], data["strip"], data["na"]) == (";", False, True, ["?"])
    assert data["names"] == ["column_1", "column_2", "column_3", "column_4", "column_5"]
    assert data["label"] == "column_5" and data["drop"] == ["column_1"]
    assert "there is no header" in answer.out and "columns are separated by semicolons" in answer.out
    assert "6.7% of their values are missing, written ?" in answer.out


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_other_formats_of_tables(desk: Path, drafted: Any, suffix: str) -> None:
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as parquet

    rows = [{**row, "label": row["age"] % 3, "tags": [1, 2]} for row in people()]
    path = desk / f"people.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        feather.write_feather(pa.Table.from_pylist(rows), str(path), compression="uncompressed")
    answer, recipe = drafted(path.name)
    assert recipe["objective"] == "classify"
    assert recipe["data"]["label"] == "label" and recipe["data"]["target"] == "class"
    assert recipe["data"]["drop"] == ["id"]
    assert recipe["data"]["columns"] == ["id", "age", "town", "score", "rich", "label"]
    assert "tags, lists in its cells" in answer.out


def test_a_number_to_predict(desk: Path, drafted: Any) -> None:
    rows = [{"a": row["age"], "town": row["town"], "price": 1000.5 * row["age"]} for row in people()]
    (desk / "houses.csv").write_text(csv_of(rows))
    answer, recipe = drafted("houses.csv")
    assert recipe["objective"] == "regress" and recipe["data"]["target"] == "number"
    assert "price, a number, 18k to 79k" in answer.out


def test_files_called_train_and_test(desk: Path, drafted: Any) -> None:
    rows = people()
    (desk / "train.csv").write_text(csv_of(rows[:90]))
    (desk / "test.csv").write_text(csv_of(rows[90:]))
    answer, recipe = drafted("train.csv", "test.csv", "--label", "rich")
    assert recipe["data"]["validation"] == "test.csv" and "holdout" not in recipe["data"]
    assert "validation  test.csv" in answer.out


def test_a_test_file_without_the_label_is_not_used(desk: Path, drafted: Any) -> None:
    rows = people()
    (desk / "some").mkdir()
    (desk / "some" / "train.csv").write_text(csv_of(rows))
    (desk / "some" / "test.csv").write_text(csv_of([{k: v for k, v in row.items() if k != "rich"} for row in rows]))
    answer, recipe = drafted("some", "--label", "rich")
    assert recipe["data"]["table"] == "some/train.csv" and recipe["data"]["holdout"] == 0.2
    assert "test.csv: it has no column 'rich'" in answer.out


def test_bad_rows_missing_labels_zeros_in_front_and_double_names(desk: Path, drafted: Any) -> None:
    lines = ["zip,age,age,y"] + [f"0{1000 + i % 7},{20 + i % 50},{i % 9}.5,{i % 2}" for i in range(100)]
    lines[30], lines[40] = "01000,30,1.5,", "01000,30,1.5,1,9,9"
    (desk / "towns.csv").write_text("\n".join(lines) + "\n")
    answer, recipe = drafted("towns.csv")
    data = recipe["data"]
    assert data["names"] == ["zip", "age", "age_2", "y"] and data["skip_lines"] == 1 and data["header"] is False
    assert data["text"] == ["zip"]
    assert data["on_bad"] == "skip"
    assert "towns.csv, line 41: expected 4 values, got 6" in " ".join(answer.out.split())


def test_what_tells_the_label_is_pointed_out(desk: Path, drafted: Any) -> None:
    rows = [{**row, "status": {"yes": "rich man", "no": "poor man"}[row["rich"]]} for row in people()]
    (desk / "people.csv").write_text(csv_of(rows))
    answer, recipe = drafted("people.csv", "--label", "rich")
    assert recipe["data"]["drop"] == ["id"]
    assert "status: it alone explains 100% of rich" in answer.out
    assert "# drop: [id, age, status]" in (desk / "recipe.yaml").read_text()


def test_latin_letters(desk: Path, drafted: Any) -> None:
    rows = [{**row, "town": ["Zürich", "Genf", "Bern"][row["id"] % 3]} for row in people()]
    (desk / "people.csv").write_bytes(csv_of(rows).encode("cp1252"))
    _, recipe = drafted("people.csv", "--label", "rich")
    assert recipe["data"]["encoding"] == "cp1252"


@pytest.mark.parametrize("singles", [1, 30])
def test_classes_of_one_row(desk: Path, drafted: Any, singles: int) -> None:
    """One class is left to train on by some split; thirty are not."""
    rows = [{"a": row["age"], "b": row["score"], "y": row["rich"]} for row in people(400)]
    for i in range(singles):
        rows[i]["y"] = f"rare {i}"
    (desk / "some.csv").write_text(csv_of(rows))
    _, recipe = drafted("some.csv")
    assert ("holdout" in recipe["data"]) is (singles == 1)
    assert singles == 1 or "classes have too few rows to split: rare 0" in (desk / "recipe.yaml").read_text()


def test_the_start_of_a_large_file_ends_with_a_row(desk: Path) -> None:
    (desk / "quoted.csv").write_text('a,b\n1,"two\nlines"\n2,"more\nlines"\n3,x\n')
    head = FileStart.of(LocalFile(desk / "quoted.csv"), 30)
    assert head.content == b'a,b\n1,"two\nlines"\n' and not head.whole
    assert FileStart.of(LocalFile(desk / "quoted.csv")).whole


def test_decimal_commas(desk: Path, drafted: Any) -> None:
    rows = [{**row, "score": str(row["score"]).replace(".", ",")} for row in people()]
    (desk / "people.csv").write_text(csv_of(rows, ";"))
    answer, recipe = drafted("people.csv", "--label", "rich")
    assert recipe["data"]["decimal"] == ","
    assert "2 numbers, 1 category" in answer.out


def test_thousands_in_quotes(desk: Path, drafted: Any) -> None:
    lines = [f'"{i // 10},{100 + i}",{i % 2},{i % 7}' for i in range(100)]
    (desk / "sums.csv").write_text("\n".join(["sum,y,z", *lines]) + "\n")
    _, recipe = drafted("sums.csv")
    assert recipe["data"]["text"] == ["sum"]


# ---- images, text, tokens, arrays ----


def photos(folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for name in ("ants", "bees", "cats"):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            pixels = random.integers(0, 256, (40, 52, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.{'png' if i % 2 else 'jpg'}")


def test_a_folder_of_images(desk: Path, drafted: Any) -> None:
    photos(desk / "photos")
    answer, recipe = drafted("photos")
    assert recipe["data"] == {"images": "photos", "size": 32, "augment": ["flip"], "holdout": 0.2}
    assert recipe["objective"] == "classify" and "convnet" in recipe["model"]
    assert "classes  3: ants 8, bees 8, cats 8" in answer.out
    assert "about 52 x 40 pixels" in answer.out


def test_a_list_of_images(desk: Path, drafted: Any) -> None:
    photos(desk / "photos")
    files = sorted((desk / "photos").rglob("*.*g"))
    lines = [f"{file.relative_to(desk)},{file.parent.name}" for file in files]
    (desk / "list.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    answer, recipe = drafted("list.csv")
    assert recipe["data"]["images"] == "list.csv"
    assert "24 images by a list" in answer.out


def test_a_list_of_images_with_other_names(desk: Path, flatout: Command) -> None:
    photos(desk / "photos")
    files = sorted((desk / "photos").rglob("*.*g"))
    (desk / "list.csv").write_text("\n".join(["file,kind", *(f"{f.relative_to(desk)},{f.parent.name}" for f in files)]))
    answer = flatout("new", "list.csv")
    assert answer.code == 2
    assert "list of images, by its column 'file': call that column path and the one to learn label" in answer.err


def test_text(desk: Path, drafted: Any) -> None:
    (desk / "poem.txt").write_text("The quick brown fox jumps over the lazy dog, again and again.\n" * 100)
    answer, recipe = drafted("poem.txt")
    assert recipe["data"]["text"] == "poem.txt" and recipe["data"]["encoding"] == "chars"
    assert recipe["objective"] == "next_token" and "gpt" in recipe["model"]
    assert "text of about 6.2k characters" in answer.out


def test_a_folder_of_text_and_json_documents(desk: Path, drafted: Any) -> None:
    (desk / "corpus" / "deep").mkdir(parents=True)
    for i in range(4):
        (desk / "corpus" / "deep" / f"{i}.md").write_text(f"Document {i}: some words follow each other here.\n" * 20)
    _, recipe = drafted("corpus")
    assert recipe["data"]["text"] == "corpus/**/*.md"
    lines = [json.dumps({"content": f"line {i} has some words", "source": "web"}) for i in range(200)]
    (desk / "docs.jsonl").write_text("\n".join(lines) + "\n")
    _, recipe = drafted("docs.jsonl", "--force")
    assert recipe["data"]["field"] == "content"


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_tokens(desk: Path, drafted: Any, dtype: str) -> None:
    (np.arange(3000) % 500).astype(dtype).tofile(desk / "tokens.bin")
    answer, recipe = drafted("tokens.bin")
    assert recipe["data"]["dtype"] == dtype
    assert "ids up to 499" in answer.out


def test_arrays(desk: Path, drafted: Any) -> None:
    answer, recipe = drafted("train.npz")
    assert recipe["data"] == {"arrays": "train.npz", "normalize": "auto", "holdout": 0.2}
    assert recipe["objective"] == "binary" and "x  128 x 5 float32" in answer.out


def test_images_and_labels_in_files_of_their_own(desk: Path, drafted: Any) -> None:
    random = np.random.default_rng(0)
    np.save(desk / "images.npy", random.integers(0, 256, (60, 16, 16, 3)).astype(np.uint8))
    np.save(desk / "labels.npy", np.arange(60) % 4)
    _, recipe = drafted("labels.npy", "images.npy")
    assert recipe["data"]["arrays"] == {"x": "images.npy", "y": "labels.npy"}
    assert recipe["data"]["layout"] == "hwc" and "convnet" in recipe["model"]


# ---- real data ----


def test_adult(desk: Path, drafted: Any, shared_data: Shared) -> None:
    answer, recipe = drafted(str(shared_data("adult/adult.data.gz")), str(shared_data("adult/adult.test.gz")), "--label", "15")
    data = recipe["data"]
    assert (data["comment"], data["strip"], data["na"], data["label"]) == ("|", " .", ["?"], "column_15")
    assert "a table of 32,561 rows and 15 columns" in answer.out
    assert "2 classes: <=50K 76%, >50K 24%" in answer.out


def test_bank_marketing(desk: Path, drafted: Any, shared_data: Shared) -> None:
    answer, recipe = drafted(str(shared_data("bank-marketing/bank-additional-full.csv.gz")))
    assert recipe["data"]["delimiter"] == ";" and recipe["data"]["label"] == "y"
    assert "10 numbers, 10 categories; no value is missing" in answer.out


def test_covertype_head(desk: Path, drafted: Any, shared_data: Shared) -> None:
    with lzma.open(shared_data("covertype/covtype.csv.xz"), "rt") as file:
        (desk / "covtype.csv").write_text("".join(line for line, _ in zip(file, range(5001), strict=False)))
    answer, recipe = drafted("covtype.csv")
    assert recipe["data"]["label"] == "Cover_Type" and recipe["objective"] == "classify"
    assert "a table of 5,000 rows and 55 columns" in answer.out


def test_real_photos(desk: Path, drafted: Any, shared_data: Shared) -> None:
    answer, recipe = drafted(str(shared_data("photos/hymenoptera")))
    assert "120 images in class folders to train on" in answer.out
    assert "held out  val" in answer.out and recipe["objective"] == "binary"


# ---- refusals ----


def refused(answer: Answer, *words: str) -> None:
    assert answer.code in (1, 2) and answer.out == ""
    assert answer.err.startswith("flatout: ")
    for word in words:
        assert word in answer.err, answer.err


def test_nothing_is_there(desk: Path, flatout: Command) -> None:
    refused(flatout("new", "nowhere.csv"), "nowhere.csv does not exist: expected a table (.csv")
    refused(flatout("new", "*.nothing"), "*.nothing matches no file")


def test_empty_files_and_folders(desk: Path, flatout: Command) -> None:
    (desk / "empty.csv").touch()
    (desk / "blank.xyz").write_text("\n\n")
    (desk / "folder").mkdir()
    refused(flatout("new", "empty.csv"), "empty.csv is empty")
    refused(flatout("new", "blank.xyz"), "blank.xyz is empty")
    refused(flatout("new", "folder"), "the folder folder is empty")


def test_unknown_kinds(desk: Path, flatout: Command) -> None:
    (desk / "program.exe").write_bytes(bytes(range(256)))
    refused(flatout("new", "program.exe"), "program.exe is of no kind that is known; expected a table")
    (desk / "folder").mkdir()
    (desk / "folder" / "program.exe").write_bytes(bytes(range(256)))
    refused(flatout("new", "folder"), "1 files, and none of a kind that is known, such as program.exe")
    photos(desk / "photos")
    refused(flatout("new", "photos/ants/0.jpg"), "is one image: give the folder that has a folder of images for each class")
    refused(flatout("new", "photos/ants"), "holds 8 images and no folders; expected a folder for each class")


def test_mixed_kinds(desk: Path, flatout: Command) -> None:
    (desk / "people.csv").write_text(csv_of(people()))
    refused(flatout("new", "people.csv", "train.npz"), "people.csv is a table and train.npz is arrays: give files of one kind")


def test_a_label_that_is_not_there(desk: Path, flatout: Command) -> None:
    (desk / "people.csv").write_text(csv_of(people()))
    refused(flatout("new", "people.csv", "--label", "ritch"), "people.csv has no column 'ritch'; did you mean 'rich'?")
    assert not (desk / "recipe.yaml").exists()


def test_no_column_is_called_like_a_label(desk: Path, flatout: Command) -> None:
    (desk / "people.csv").write_text(csv_of(people()))
    answer = flatout("new", "people.csv")
    refused(answer, "which column is to be learned?", "--label rich")
    assert "\n  age    whole numbers, 18 to 79" in answer.err
    assert "\n  town   text: A, B, C" in answer.err


def test_labels_that_can_not_be_learned(desk: Path, flatout: Command) -> None:
    rows = [{**row, "same": 1, "name": f"person {row['id']}", "born": f"19{row['age']}-01-01"} for row in people()]
    (desk / "people.csv").write_text(csv_of(rows))
    refused(flatout("new", "people.csv", "--label", "same"), "the label 'same' is '1' in all 120 rows")
    refused(flatout("new", "people.csv", "--label", "name"), "'name' is text with 120 different values in 120 rows")
    refused(flatout("new", "people.csv", "--label", "born"), "column 'born' holds dates")


def test_arrays_without_y_and_tokens_of_odd_size(desk: Path, flatout: Command) -> None:
    np.savez(desk / "other.npz", images=np.zeros((4, 2)), labels=np.zeros(4))
    refused(flatout("new", "other.npz"), "other.npz holds images, labels: expected x, the inputs, and y")
    (desk / "odd.bin").write_bytes(b"abc")
    refused(flatout("new", "odd.bin"), "odd.bin has 3 bytes, an odd number")
    refused(flatout("new", "train.npz", "--label", "z"), "--label z: arrays are learned from their y")


def test_a_recipe_that_is_there_stays(desk: Path, flatout: Command) -> None:
    before = (desk / "table.yaml").read_text()
    refused(flatout("new", "train.npz", "--out", "table.yaml"), "table.yaml exists already", "--force")
    assert (desk / "table.yaml").read_text() == before
    assert flatout("new", "train.npz", "--out", "table.yaml", "--force").code == 0
    assert (desk / "table.yaml").read_text() != before
    refused(flatout("new", "train.npz", "--out", "table.txt"), "--out must be a .yaml file, got table.txt")
    refused(flatout("new", "train.npz", "--out", "no/table.yaml"), "folder not found")


def test_paths_are_from_the_folder_of_the_recipe(desk: Path, flatout: Command) -> None:
    (desk / "deep").mkdir()
    assert flatout("new", "train.npz", "--out", "deep/recipe.yaml").code == 0
    assert yaml.safe_load((desk / "deep" / "recipe.yaml").read_text())["data"]["arrays"] == "../train.npz"
    assert flatout("run", "deep/recipe.yaml", "budget=2 steps", "--quiet").code == 0


# ---- parts ----


def test_values_are_read_back_as_they_were() -> None:
    odd = [
        "yes",
        "1e3",
        "12",
        "a: b",
        "#x",
        "it's",
        'say "hi"',
        "two  spaces",
        " led",
        "null",
        "~",
        "",
        "ä",
        "-",
        "*",
        "a,b",
        "\t",
    ]
    written = {"names": odd, "label": "no", "steps": {"1e3": ["log"]}, "many": [f"column number {i}" for i in range(60)]}
    entries = [DraftLine("data"), *(DraftLine(name, value, "a word about it", depth=1) for name, value in written.items())]
    text = page(["A title"], entries)
    assert max(map(len, text.splitlines())) <= 100
    from flatout.base.plain_yaml import read_yaml  # the reader of recipes knows more numbers than YAML does

    assert read_yaml(text) == ({"data": written}, [])
    assert shown(True) == "true"


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("a,b\n1,2\n3,4\n", True),
        ("1,2\n3,4\n", False),
        ("39, State-gov, <=50K\n50, Private, <=50K\n", False),
        ("name,town\nAnn,Bern\nBob,Rome\n", True),
        ("Ann,Bern\nBob,Bern\nAnn,Rome\n", False),
        ("?,x\n1,y\n2,z\n3,y\n", False),
        ("age,x\n1,y\n2,z\n3,y\n", True),
    ],
)
def test_headers(text: str, header: bool) -> None:
    assert found_dialect(text.encode(), "some.csv").options.get("header", True) is header


def test_a_draft_is_a_recipe_with_every_key_checked(desk: Path, flatout: Command) -> None:
    (desk / "people.csv").write_text(csv_of(people()))
    flatout("new", "people.csv", "--label", "rich")
    recipe = read_recipe(desk / "recipe.yaml")
    assert recipe.objective == "binary" and recipe.budget == "60 epochs"
