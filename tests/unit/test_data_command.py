"""`flatout data`: what it says of every kind of data, and the sentences that follow from measured numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Answer, Command

from flatout.base.tree import to_text
from flatout.explore.survey.advice import words_of
from flatout.explore.survey.attention import ThreadTime, ThreadWatch
from flatout.explore.survey.columns import ColumnWords, LabelWords
from flatout.explore.survey.speeds import Speeds, rows_of, slowest
from flatout.explore.survey.stages import LoaderSpeed, ReadingSpeed, Stages, TransformSpeed, Wider
from flatout.explore.survey.survey import PartSize, Survey
from flatout.explore.survey.view import doc
from flatout.plan.plan import Choice, RejectedSetting

Shared = Callable[[str], Path]
QUICK = ("--seconds", "0.2")
REST = "model: {mlp: {hidden: [8]}}\nbatch: 16\nlr: 1e-2\nbudget: 2 epochs\nsettings: {device: cpu}\n"


def found(answer: Answer) -> Any:
    assert answer.code == 0, answer.err
    return json.loads(answer.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def stages(answer: Any) -> dict[str, Any]:
    return {row["stage"]: row for row in answer["stages"]}


def write_table(desk: Path) -> None:
    lines = ["id,age,town,day,rich"]
    for i in range(200):
        age = "" if i % 10 == 0 else str(20 + i % 50)
        lines.append(f"{i},{age},{'ABC'[i % 3]},2024-01-{1 + i % 28:02d},{'yes' if i % 4 == 0 else 'no'}")
    (desk / "people.csv").write_text("\n".join(lines) + "\n")
    data = "data: {table: people.csv, label: rich, drop: [id], holdout: 0.2}\nobjective: binary\n"
    (desk / "people.yaml").write_text(data + REST)


# ---- as a person types it ----


def test_a_table(desk: Path, flatout: Command) -> None:
    write_table(desk)
    answer = flatout("data", "people.yaml", *QUICK)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= 100, answer.out
    assert lines[0].startswith("Data of people.yaml on ")
    assert re.search(r"^train +160 ", answer.out, re.MULTILINE) and re.search(r"^validation +40 ", answer.out, re.MULTILINE)
    assert re.search(r"^age +number +\d+\.\d% +standardised: mean .*; missing: .* and a flag$", answer.out, re.MULTILINE)
    assert re.search(r"^town +category +3 values as 0 and 1: A, B, C$", answer.out, re.MULTILINE)
    assert re.search(r"^day +date ", answer.out, re.MULTILINE)
    assert "rich, 2 classes: no 7" in answer.out
    assert re.search(r"^tier +resident: ", answer.out, re.MULTILINE)
    assert re.search(r"^loader +all of it", answer.out, re.MULTILINE)
    assert not (desk / "runs").exists()  # it never trains


def test_a_table_for_a_program(desk: Path, flatout: Command) -> None:
    write_table(desk)
    data = found(flatout("data", "people.yaml", "--json", *QUICK))
    assert [(part["name"], part["rows"]) for part in data["parts"]] == [("train", 160), ("validation", 40)]
    assert data["files"] == 1 and data["file_bytes"] == (desk / "people.csv").stat().st_size
    columns = {column["name"]: column for column in data["columns"]}
    assert set(columns) == {"age", "town", "day"} and 0.02 < columns["age"]["missing"] < 0.2
    assert data["label"]["name"] == "rich" and abs(sum(data["label"]["classes"].values()) - 1) < 1e-9
    assert data["tier"]["value"] == "resident"
    rates = stages(data)
    assert {"picking", "transforms", "loader", "training"} <= set(rates)
    assert all(row["rows_per_s"] > 0 for row in rates.values())
    assert data["slowest"] in ("picking", "transforms") and data["no_plan"] is None


def test_arrays_with_an_override_and_a_pin(desk: Path, flatout: Command) -> None:
    data = found(flatout("data", "table.yaml", "data.holdout=0.5", "--set", "tier=pinned", "--json", *QUICK))
    assert [part["rows"] for part in data["parts"]] == [64, 64]
    assert data["tier"] == {"value": "pinned", "why": "pinned by you", "source": "pinned", "rejected": data["tier"]["rejected"]}
    assert data["columns"][0] == {"name": "x", "kind": "float32 5", "missing": None, "what": "to the model: float32 5"}


def test_text(desk: Path, flatout: Command) -> None:
    line = "The quick brown fox jumps over the lazy dog.\n"
    (desk / "poem.txt").write_text(line * 200)
    (desk / "poem.yaml").write_text(
        "data: {text: poem.txt, window: 16}\nmodel: {gpt: {layers: 1, heads: 1, width: 16}}\nobjective: next_token\n"
        "batch: 8\nlr: 1e-3\nbudget: 5 steps\nsettings: {device: cpu}\n"
    )
    answer = flatout("data", "poem.yaml", *QUICK)
    assert "windows/s" in answer.out and f"{len(set(line))} different tokens" in answer.out
    assert "keeping" not in answer.out  # windows are cut out of a stream in memory


def test_images_and_bad_files(desk: Path, flatout: Command) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for name in ("ants", "bees"):
        (desk / "photos" / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(random.integers(0, 256, (60, 80, 3)).astype(np.uint8)).save(desk / "photos" / name / f"{i}.jpg")
    (desk / "photos" / "bees" / "broken.jpg").write_text("this is no image")
    (desk / "photos.yaml").write_text(
        "data: {images: photos, size: 32, augment: [random_resized_crop, flip], on_bad: skip}\n" + REST
    )
    data = found(flatout("data", "photos.yaml", "--json", *QUICK))
    rates = stages(data)
    assert {"reading", "keeping", "transforms", "loader"} <= set(rates)
    assert data["steps"] == ["random_resized_crop", "flip", "normalize"]
    assert data["label"]["classes"] == {"ants": 0.5, "bees": 0.5}
    assert "1 bad sample was left out" in data["notes"][0] and "broken.jpg" in data["notes"][0]
    assert [column["name"] for column in data["columns"]] == ["pixels", "y"]


def test_a_dataset_of_ones_own(desk: Path, flatout: Command) -> None:
    (desk / "mine.py").write_text(
        "import torch\nimport flatout as fo\n"
        "class Mine(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 60\n"
        "    def __getitem__(self, i): return torch.full((4,), float(i)), i % 2\n"
        "recipe = fo.Recipe(data=fo.data.dataset(Mine(), classes=2, processes=False), model='mlp', batch=8, lr=1e-3,\n"
        "                   budget='5 steps', settings={'device': 'cpu'})\n"
    )
    data = found(flatout("data", "mine.py", "--json", *QUICK))
    assert data["parts"] == [{"name": "train", "rows": 60, "bytes": 60 * 24}]
    assert stages(data)["loader"]["rows_per_s"] > 0


def test_an_iterable(desk: Path, flatout: Command) -> None:
    (desk / "mine.py").write_text(
        "import torch\nimport flatout as fo\n"
        "class Mine(torch.utils.data.IterableDataset):\n"
        "    def __iter__(self): return iter([(torch.full((4,), float(i)), i % 2) for i in range(200)])\n"
        "recipe = fo.Recipe(data=fo.data.dataset(Mine(), classes=2, processes=False), model='mlp', batch=8, lr=1e-3,\n"
        "                   budget='5 steps', settings={'device': 'cpu'})\n"
    )
    data = found(flatout("data", "mine.py", "--json", *QUICK))
    assert data["parts"][0]["name"] == "train" and data["slowest"] is None
    assert stages(data)["loader"]["rows_per_s"] > 0


def test_the_data_is_told_even_if_the_model_is_wrong(desk: Path, flatout: Command) -> None:
    data = found(flatout("data", "table.yaml", "model=convnet", "--json", *QUICK))
    assert "convnet needs images" in data["no_plan"]
    assert data["parts"][0]["rows"] == 96 and "training" not in stages(data)


def test_wrong_data_and_wrong_words(desk: Path, flatout: Command) -> None:
    write_table(desk)
    answer = flatout("data", "people.yaml", "data.label=ritch")
    assert answer.code == 1 and "did you mean 'rich'?" in answer.err
    assert flatout("data", "nowhere.yaml").code == 2
    assert flatout("data", "people.yaml", "--seconds", "0").code == 2


def test_adult(desk: Path, flatout: Command, shared_data: Shared) -> None:
    assert flatout("new", str(shared_data("adult/adult.data.gz")), "--label", "15").code == 0
    answer = flatout("data", "recipe.yaml", *QUICK)
    assert re.search(r"^train +26,049 ", answer.out, re.MULTILINE)
    assert re.search(r"^column_2 +category +5\.\d% +8 values as 0 and 1", answer.out, re.MULTILINE)
    assert max(map(len, answer.out.splitlines())) <= 100


def test_real_photos(desk: Path, flatout: Command, shared_data: Shared) -> None:
    assert flatout("new", str(shared_data("photos/hymenoptera"))).code == 0
    data = found(flatout("data", "recipe.yaml", "--json", "--seconds", "0.5"))
    reading = stages(data)["reading"]
    assert reading["rows_per_s"] > 0 and data["files"] == 170


# ---- what numbers mean ----


PHOTOS = Speeds(
    unit="images",
    row_bytes=600_000,
    stored_bytes=12e9,
    in_memory=False,
    on_cpu=False,
    tier="streamed",
    cores=2,
    threads=2,
    stages=Stages(
        ReadingSpeed(200.0, ThreadTime(0.91, 0.0), file_bytes_per_row=110_000),
        4100.0,
        12e9,
        (TransformSpeed("random_resized_crop", 80e-6), TransformSpeed("flip", 20e-6)),
        LoaderSpeed(380.0, "streamed", 2),
    ),
    opening_s=1.0,
    wanted_rows_per_s=3000.0,
    disk_bytes_per_s=1.1e9,
    link_bytes_per_s=24e9,
    host_free_bytes=8e9,
    disk_free_bytes=100e9,
)


def test_slow_decoding_is_named_with_its_rate_its_ceiling_and_what_helps() -> None:
    assert [row.name for row in rows_of(PHOTOS)] == ["reading", "keeping", "copying", "transforms"]
    words = words_of(PHOTOS)
    assert words == [
        "Training may wait for data: it could use 3k images/s, and data can be read at 380 images/s, 13% of that.",
        "The slowest stage is reading: 400 images/s on 2 threads, 4% of the speed of the disk (10k images/s).",
        "With --set tier=mapped, rows would be read at about 4.1k images/s from the second epoch on; it takes 12 GB of disk "
        "(100 GB free).",
        "Each thread reads 200 images/s: 15 would keep up with training, but this machine has 2 cores.",
    ]


def test_rows_that_are_kept_already() -> None:
    words = words_of(replace(PHOTOS, tier="pinned", stored_bytes=2e9))
    assert words[0].startswith("Training may wait for data in the first epoch: ")
    assert any("host memory" in one and "4.1k images/s" in one and "2 GB" in one for one in words)


def test_nothing_is_advised_that_there_is_no_room_for() -> None:
    words = words_of(replace(PHOTOS, disk_free_bytes=1e9))
    assert not any("--set tier" in sentence for sentence in words)


def test_threads_that_wait_for_files() -> None:
    reading = replace(PHOTOS.stages.reading, attention=ThreadTime(0.2, 0.0))
    words = words_of(replace(PHOTOS, stages=replace(PHOTOS.stages, reading=reading)))
    assert any("a faster disk" in sentence for sentence in words)
    assert not any("Each thread" in sentence for sentence in words)


def test_a_busy_machine_is_said() -> None:
    reading = replace(PHOTOS.stages.reading, attention=ThreadTime(0.4, 0.6))
    words = words_of(replace(PHOTOS, stages=replace(PHOTOS.stages, reading=reading)))
    assert "60% of the time" in words[-1]


def test_workers_of_a_dataset() -> None:
    reading = replace(PHOTOS.stages.reading, own_workers=4)
    words = words_of(replace(PHOTOS, stages=replace(PHOTOS.stages, reading=reading)))
    assert "The slowest stage is reading: 200 images/s by 4 workers of the dataset." in words
    assert any("50 images/s" in sentence and "workers=" in sentence for sentence in words)


def test_slow_transforms() -> None:
    steps = (TransformSpeed("random_resized_crop", 8e-3), TransformSpeed("flip", 2e-3))
    speeds = replace(PHOTOS, stages=replace(PHOTOS.stages, transforms=steps))
    assert slowest(speeds).name == "transforms"
    assert words_of(speeds)[1:] == [
        "The slowest stage is transforms: 100 images/s.",
        "random_resized_crop takes 80% of the time of all transforms: without it they would do 500 images/s.",
    ]


def test_a_slow_link() -> None:
    speeds = replace(PHOTOS, stages=replace(PHOTOS.stages, copy_bytes_per_s=60e6))
    assert words_of(speeds)[1] == "The slowest stage is copying: 100 images/s, 0% of the speed of the link (40k images/s)."
    assert words_of(speeds)[2].startswith("A row is 600 kB")


TABLE = Speeds(
    unit="rows",
    row_bytes=64,
    stored_bytes=64e6,
    in_memory=True,
    on_cpu=True,
    tier="resident",
    cores=2,
    threads=1,
    stages=Stages(
        ReadingSpeed(1e6, ThreadTime(1.0, 0.0), wider=Wider(8192, 3e7)),
        None,
        None,
        (TransformSpeed("table", 5e-7),),
        LoaderSpeed(6e5, "resident"),
    ),
    opening_s=20.0,
    wanted_rows_per_s=2e5,
    opened_rows=1_000_000,
    file_bytes=75e6,
    parsed=True,
    memory_bytes_per_s=6.4e9,
)


def test_a_table_in_memory_that_took_long_to_parse() -> None:
    assert words_of(TABLE) == [
        "Training will not wait for data: it needs at most 200k rows/s, and data can be read at 600k rows/s, 3.0 times that.",
        "The slowest stage is picking: 1M rows/s.",
        "Most of the time is overhead per batch: batches of 8,192 would be picked at 30M rows/s.",
        "Reading and preparing the files takes 20 s before the first step, 50k rows/s: the text is parsed each time; a copy as "
        "Parquet avoids that.",
    ]


def test_on_a_cpu_the_same_threads_keep_and_transform() -> None:
    speeds = replace(PHOTOS, on_cpu=True, stages=replace(PHOTOS.stages, copy_bytes_per_s=None))
    assert speeds.later_rows_per_s == pytest.approx(2 / (1 / 4100 + 100e-6))
    measured = replace(speeds, tier="pinned", stages=replace(speeds.stages, loading=LoaderSpeed(380.0, "pinned", 2, 1234.0)))
    assert measured.later_rows_per_s == 1234.0


def test_the_page_of_a_slow_pipeline() -> None:
    survey = Survey(
        name="photos.yaml",
        machine="NVIDIA H200",
        parts=(PartSize("train", 20_000, 12_000_000_000), PartSize("validation", None, None)),
        files=20_000,
        columns=(ColumnWords("pixels", "uint8, about 600 kB a row", None, "to the model: float32 3 x 224 x 224"),),
        label=LabelWords("y", tuple((f"class {i}", 0.1) for i in range(10))),
        data={},
        steps=("random_resized_crop", "flip"),
        tier=Choice("tier", "streamed", "read from the source in every epoch: no other tier has room or is faster"),
        rejected=(RejectedSetting("tier", "pinned", "12 GB is too much for 8 GB free in host memory"),),
        speeds=replace(PHOTOS, file_bytes=2.2e9),
        notes=("1 bad sample was left out: a.jpg: is empty",),
    )
    text = to_text(doc(survey))
    assert max(map(len, text.splitlines())) <= 100, text
    assert text.splitlines()[0] == "Data of photos.yaml on NVIDIA H200 · 380 images/s · slowest stage: reading"
    assert "2.2 GB in 20,000 files on disk" in text
    assert "2 more down to 10.00%" in text
    assert "not pinned: 12 GB is too much for 8 GB free in host memory" in text
    assert re.search(
        r"^reading +one thread: 91% working, 9% waiting for files +200 images/s +10k \(disk\)$", text, re.MULTILINE
    )
    assert "note    1 bad sample was left out: a.jpg: is empty" in text


def test_attention_adds_up() -> None:
    watch = ThreadWatch()
    sum(range(200_000))
    spent = watch.attention()
    assert 0 <= spent.working <= 1 and 0 <= spent.queued <= 1 and 0 <= spent.waiting <= 1
    assert spent.working + spent.queued + spent.waiting == pytest.approx(1)
