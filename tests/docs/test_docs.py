"""The pages against the code, in both directions, and every block of code that they show."""

from __future__ import annotations

import ast
import dataclasses
import gzip
import inspect
import json
import lzma
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from pages import GUIDE, PAGES, README, ROOT, Page, first_column

import flatout
from flatout.base.budget import COUNTED, SPENT, Budget
from flatout.cli.main import app
from flatout.data.feeds.loader import loader
from flatout.data.fitted.derived.functions import FUNCTIONS, OPERATORS
from flatout.data.sources.arrays import arrays
from flatout.data.sources.datasets.dataset import dataset
from flatout.data.sources.photos.images import images
from flatout.data.sources.tables.scan import ReadOptions
from flatout.data.sources.tables.steps import CATEGORY_STEPS, DATE_STEPS, NUMBER_STEPS
from flatout.data.sources.tables.table import table
from flatout.data.sources.texts.sequences import sequences
from flatout.data.sources.texts.text import text
from flatout.data.specs import KINDS, parse_data
from flatout.data.transforms import TRANSFORMS
from flatout.engine.optimizers import OPTIMIZERS, SHAPES
from flatout.engine.settings import Settings
from flatout.measure.ledger import ROWS
from flatout.models.build import BUILDERS
from flatout.objectives.build import OBJECTIVES
from flatout.pipelines.asked.reading import pipeline_from
from flatout.pipelines.asked.stage_kinds import COMMON_KEYS, STAGE_KINDS, ColumnRule, PipelineKeys
from flatout.recipe.load import read_recipe, recipe_from
from flatout.recipe.schema import Recipe

ids = {"ids": lambda page: page.name}
BASE = {"data": "digits", "model": "mlp", "batch": 16, "lr": 1e-3, "budget": "4 steps"}
FROM_DATA = {"input_shape", "outputs", "vocabulary", "window", "cardinalities"}
OTHER_PROGRAMS = {"--durations", "--quick"}  # of scripts/bench and pytest


def commands() -> dict[str, Any]:
    """Every command of the CLI by its words: "run", "runs compare"."""

    def walk(group: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, command in getattr(group, "commands", {}).items():
            yield " ".join((*words, name)), command
            yield from walk(command, (*words, name))

    return dict(walk(typer.main.get_command(app), ()))


COMMANDS = commands()


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")} | {"--help"}


def arguments(function: Any) -> dict[str, Any]:
    """Its parameters with their defaults; lists as YAML has them."""
    found = {name: one.default for name, one in inspect.signature(function).parameters.items() if one.kind != one.VAR_KEYWORD}
    return {name: list(default) if isinstance(default, tuple) else default for name, default in found.items()}


# ---- files that the pages name: of the same form as the real ones, and small ----


IDX = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
FOR_EXAMPLES = {
    "adult/adult.data.gz": "adult.data.gz",
    "adult/adult.test.gz": "adult.test.gz",
    "bank-marketing/bank-additional-full.csv.gz": "bank.csv.gz",
    "covertype/covtype.csv.xz": "covtype.csv.xz",
    "tiny-shakespeare/input.txt": "input.txt",
    **{f"fashion-mnist/{name}": f"fashion/{name}" for name in IDX},
}


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    _write_tables(folder)
    _write_photos(folder)
    _write_words(folder)
    _write_digits(folder / "fashion")
    for name, its_sample in FOR_EXAMPLES.items():
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / its_sample, folder / "data" / name)
    return folder


@pytest.fixture
def place(place: Path, samples: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(samples, place, dirs_exist_ok=True)
    monkeypatch.setenv("HOME", str(place))  # caches of what is used without a word about one
    return place


def _write_tables(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def packed(name: str, lines: list[str]) -> None:
        (folder / name).write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), 1))

    header = "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,median_income"
    near = ["INLAND", "NEAR BAY", "ISLAND"]
    rows = [
        f"-1{i % 20}.5,3{i % 7}.1,{i % 50},{i},{i % 90 or ''},{i % 80},{i % 60},{i % 11}.5,{i}500.0,{near[i % 3]}"
        for i in range(3600)
    ]
    packed("housing.csv.gz", [header + ",median_house_value,ocean_proximity", *rows])
    adult = "{}, {}, {}, HS-grad, 9, Divorced, Sales, Wife, White, Male, {}, {}, 40, Cuba, {}"
    rows = [
        adult.format(i % 60, "?" if i % 9 else "Private", i, i % 5, i % 7, ">50K" if i % 4 else "<=50K") for i in range(200)
    ]
    packed("adult.data.gz", rows)
    packed("adult.test.gz", ["|1x3 Cross validator", *(row + "." for row in rows[:50])])
    jobs, ends = ["admin.", "services", "student"], ["success", "failure"]
    bank = [f'{i % 70};"{jobs[i % 3]}";{i};{i % 9};{i % 5}.1;"{ends[i % 2]}";"{"no" if i % 5 else "yes"}"' for i in range(200)]
    packed("bank.csv.gz", ['"age";"job";"duration";"campaign";"euribor3m";"poutcome";"y"', *bank])
    trees = [f"{i % 30},{i % 17},{i % 7 + 1}" for i in range(90)]
    (folder / "covtype.csv.xz").write_bytes(lzma.compress("\n".join(["Elevation,Slope,Cover_Type", *trees, ""]).encode()))
    packed("ETTh1.csv.gz", ["date,HUFL,OT", *(f"2016,{i % 24}.5,{i % 50}.1" for i in range(11520))])
    places, hours = [[f"{(i * k) % 9}" for i in range(90)] for k in (1, 2)], [i % 24 for i in range(90)]
    starts = [(f"2024-03-0{1 + place % 9}", 10 + place % 40, place) for place in range(60)]
    trips = [f"{1 + i % 7}.5,{day}T10:00:00,{day}T10:{minute}:00,{'ABC'[i % 3]},{i % 11}.5" for day, minute, i in starts]
    (folder / "trips.csv").write_text("\n".join(["km,start,end,zone,fare", *trips]))
    (folder / "zones.csv").write_text("zone,fee\nA,1.5\nB,2.5\n")
    sales = [
        f"2024-{1 + place // 28 % 12:02}-{1 + place % 28:02},{store},{place % 9}.5" for place in range(90) for store in (1, 2)
    ]
    (folder / "sales.csv").write_text("\n".join(["day,store,sales", *sales]))
    taxi = {
        "tpep_pickup_datetime": pa.array([1641800000 + 3600 * hour for hour in hours], pa.timestamp("s")),
        "tpep_dropoff_datetime": pa.array([1641801000 + 3600 * hour for hour in hours], pa.timestamp("s")),
        "passenger_count": [float(i % 5) for i in range(90)],
        "trip_distance": [i % 30 + 0.5 for i in range(90)],
        "PULocationID": [int(place) for place in places[0]],
        "DOLocationID": [int(place) for place in places[1]],
        **{name: [i % 40 + 2.5 for i in range(90)] for name in ("fare_amount", "tip_amount", "total_amount")},
    }
    (folder / "taxi").mkdir()
    for day in (10, 11):
        parquet.write_table(pa.table(taxi), folder / "taxi" / f"2022-01-{day}.parquet")


def _write_digits(folder: Path) -> None:
    folder.mkdir()
    for name in IDX:
        shape = (64, 28, 28) if "images" in name else (64,)
        head = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
        content = (np.arange(np.prod(shape)) % 10).astype(np.uint8).tobytes()
        (folder / name).write_bytes(gzip.compress(head + content, 1))


def _write_photos(folder: Path) -> None:
    import simplejpeg

    listed = ["path,label"]
    for part, kind, number in ((p, k, n) for p in ("train", "val") for k in ("ants", "bees") for n in range(8)):
        path = folder / "ants-and-bees" / part / kind / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(np.full((90, 120, 3), 9 * number, np.uint8)))
        listed.append(f"{path.relative_to(folder)},{kind}")
    (folder / "photos.csv").write_text("\n".join([*listed, ""]))


def _write_words(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    lines = [f"article {i} tells of winter and of discontent made glorious summer" for i in range(200)]
    (folder / "input.txt").write_text("\n".join(lines))
    (folder / "wiki.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    (folder / "speeches.jsonl").write_text("".join(json.dumps({"text": line[: 5 + i]}) + "\n" for i, line in enumerate(lines)))
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(lines, trainers.WordLevelTrainer(special_tokens=["[UNK]", "<|endoftext|>"], show_progress=False))
    words.save(str(folder / "tokenizer.json"))


# ---- names ----


def test_public_names_resolve_and_are_in_the_pages() -> None:
    written = "\n".join(page.text for page in PAGES)
    for name in flatout.__all__:
        assert getattr(flatout, name) is not None
        assert re.search(rf"\bfo\.{name}\b", written), f"fo.{name} is in no page"


def test_recipe_keys() -> None:
    assert first_column(GUIDE.section("Recipe keys")) == list(Recipe.model_fields)


def test_recipe_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", GUIDE.section("Recipe keys"), re.MULTILINE)
    assert {name: str(Recipe.model_fields[name].default) for name, _ in rows} == dict(rows)


def test_settings() -> None:
    assert sorted(first_column(GUIDE.section("Settings"))) == sorted(
        field.name for field in fields(Settings) if field.name != "own"
    )


@pytest.mark.parametrize(
    ("section", "table"),
    [
        ("Models", BUILDERS),
        ("Transforms", TRANSFORMS),
        ("Objectives", OBJECTIVES),
    ],
)
def test_named_parts(section: str, table: Any) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", GUIDE.section(section), re.MULTILINE)
    assert sorted(rows) == sorted(table)


def test_optimizers_and_schedules() -> None:
    named = set(first_column(GUIDE.section("Optimizers and schedules")))
    assert named == {*OPTIMIZERS, *SHAPES}


def test_options_of_parts() -> None:
    """What is written `option: default` beside a part is an option of it, and all of its options are written."""
    known = {name: set(options) for name, (_, options) in OPTIMIZERS.items()}
    known |= {name: set(inspect.signature(shape).parameters) for name, shape in SHAPES.items()}
    known |= {name: set(inspect.signature(maker).parameters) - FROM_DATA for name, maker in BUILDERS.items()}
    for section in ("Optimizers and schedules", "Models"):
        for names, rest in re.findall(r"^\| (`.+?`) \|(.*)$", GUIDE.section(section), re.MULTILINE):
            for name in re.findall(r"`(\w+)`", names):
                assert set(re.findall(r"`(\w+): ", rest)) == known[name], name


SECTIONS = {
    "arrays": "Arrays", "table": "Table", "sql": "SQL", "images": "Images", "text": "Text", "sequences": "Sequences"
}  # fmt: skip
IN_PYTHON = {"rows", "y"}
LISTED = {**arguments(ReadOptions), **arguments(table)}  # of a table: how its files are read, then the rest


@pytest.mark.parametrize(("kind", "section"), SECTIONS.items())
def test_data_options(kind: str, section: str) -> None:
    assert set(KINDS) == {"digits", *SECTIONS}
    assert sorted(set(first_column(GUIDE.section(section))) - IN_PYTHON) == sorted(KINDS[kind].options)


@pytest.mark.parametrize(
    ("section", "known"),
    [
        ("Arrays", arguments(arrays)),
        ("Table", LISTED),
        ("Images", arguments(images)),
        ("Text", {**arguments(text), "dtype": "uint16"}),  # None there: what a file of tokens says itself goes first
        ("Datasets", arguments(dataset)),
        ("Sequences", arguments(sequences)),
        ("Loader", arguments(loader)),
    ],
)
def test_data_defaults(section: str, known: dict[str, Any]) -> None:
    """A default in backticks is that of the function; one that is described in words can't be compared."""
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", GUIDE.section(section), re.MULTILINE)
    written = {name: yaml.safe_load(value) for name, value in rows if value not in ("len(train)", ".")}
    assert written == {name: known[name] for name in written} and written


@pytest.mark.parametrize(("section", "function"), [("Datasets", dataset), ("Sequences", sequences), ("Loader", loader)])
def test_arguments_in_python(section: str, function: Any) -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", GUIDE.section(section), re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(arguments(function))


def test_keys_of_stages() -> None:
    page = Page(ROOT / "docs" / "pipeline.md")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|$", page.section("Stages"), re.MULTILINE)
    assert [kind for kind, _ in rows] == list(STAGE_KINDS)
    for kind, keys in rows:
        own = {one.name for one in dataclasses.fields(STAGE_KINDS[kind])} - set(COMMON_KEYS) - {kind}
        assert set(re.findall(r"`(\w+)`", keys)) == own, kind
    written = {word for word in page.inline() if re.fullmatch(r"[a-z_]+", word)}
    assert {*COMMON_KEYS, *(one.name for one in dataclasses.fields(PipelineKeys))} <= written
    shown = yaml.safe_load(page.blocks("yaml")[1])["stages"]["calls"]["expect"]
    assert {key for rule in shown.values() for key in rule} == {one.name for one in dataclasses.fields(ColumnRule)}


def test_steps_of_columns() -> None:
    assert first_column(GUIDE.section("Steps of columns")) == [*NUMBER_STEPS, *CATEGORY_STEPS, *DATE_STEPS]


def test_functions_of_expressions() -> None:
    page = next(page for page in PAGES if page.name.endswith("derive.md"))
    assert [written for written in first_column(page.section("Functions"))] == [one.written for one in FUNCTIONS.values()]
    assert first_column(page.section("Operators")) == list(OPERATORS)


def test_options_of_transforms() -> None:
    """All of them, each with its default where that is one value."""
    for name, options in re.findall(r"^\| `(\w+)` \| (.+?) \|", GUIDE.section("Transforms"), re.MULTILINE):
        known = arguments(TRANSFORMS[name])
        assert re.findall(r"`(\w+)", options) == list(known), name
        for option, written in re.findall(r"`(\w+): ([^`]+)`", options):
            value = known[option]
            expected = value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
            assert yaml.safe_load(written) == expected, f"{name}: {option}"


def test_budgets() -> None:
    written = first_column(GUIDE.section("Budgets"))
    assert {Budget.parse(budget).unit for budget in written} == {*COUNTED, *SPENT}


def test_events() -> None:
    """Every kind that the code emits is in the guide, and no other."""
    emitted = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr in ("emit", "_emit") and node.args and isinstance(node.args[0], ast.Constant):
                emitted.add(node.args[0].value)
    assert set(first_column(GUIDE.section("Events"))) == emitted


def test_ledger_rows() -> None:
    assert set(first_column(Page(ROOT / "docs" / "explain.md").section("The ledger"))) == set(ROWS)


def test_folder_map_has_the_layers() -> None:
    text = (ROOT / "tests" / "test_layers.py").read_text()
    written = re.search(r"^LAYERS = (\{.*?^\})", text, re.MULTILINE | re.DOTALL)
    assert written is not None
    reasons = Page(ROOT / "docs" / "design.md").section("Layers")
    for unit, layer in ast.literal_eval(written[1]).items():
        assert re.search(rf"^\| {layer} \|.*`{unit}`", reasons, re.MULTILINE), f"docs/design.md: {unit} in layer {layer}"
        line = next(line for line in README.text.splitlines() if re.match(rf"      (\S+/ )*{unit}(/|\.py)", line))
        assert re.search(rf" {layer}(\s|$)", line), line


# ---- commands ----


@pytest.mark.parametrize("page", PAGES, **ids)
def test_commands_exist(page: Page) -> None:
    for shown in page.commands():
        words = [word for word in shlex.split(shown)[1:] if re.fullmatch(r"[a-z]+(?:-[a-z]+)*|--[a-z-]+", word)]
        name = next((name for n in (3, 2) if (name := " ".join(words[:n])) in COMMANDS), words[0])
        if name.startswith("--"):
            assert name in {"--help", "--version"}, shown
            continue
        assert name in COMMANDS, f"{page.name}: {shown}"
        for option in re.findall(r"(?<!\S)--[a-z-]+", shown):
            assert option in options(COMMANDS[name]), f"{page.name}: {shown}"


@pytest.mark.parametrize("page", PAGES, **ids)
def test_options_exist(page: Page) -> None:
    known = {option for command in COMMANDS.values() for option in options(command)} | OTHER_PROGRAMS
    for word in page.inline():
        for option in re.findall(r"(?<!\S)--[a-z-]+", word):
            assert option in known, f"{page.name}: {word}"


def test_every_command_is_in_the_readme() -> None:
    assert all(f"flatout {name}" in README.text for name in COMMANDS)


@pytest.mark.parametrize("page", PAGES, **ids)
def test_scripts_exist(page: Page) -> None:
    for name in re.findall(r"\bscripts/([a-z-]+)", page.text):
        assert (ROOT / "scripts" / name).exists(), f"{page.name}: scripts/{name}"


def test_a_newcomer_has_run_it_within_40_lines() -> None:
    start = "\n".join(README.text.splitlines()[:40])
    assert "scripts/demo" in start and "scripts/test" in start and "```python" in start


# ---- links ----


@pytest.mark.parametrize("page", PAGES, **ids)
def test_links(page: Page) -> None:
    for link in page.links():
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file) if file else page.path
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in Page(target).anchors(), f"{page.name}: {link}"


# ---- code ----


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks("python")], **ids)
def test_python_blocks_run(page: Page, place: Path) -> None:
    """All blocks of a page, one after another, as one program."""
    script = place / "blocks.py"
    script.write_text("\n".join(page.blocks("python")))
    runpy.run_path(str(script), run_name="__main__")


def test_the_readme_shows_what_its_lines_print(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rates and reasons differ from machine to machine; the settings and the form do not, on a CPU."""
    script = place / "six.py"
    script.write_text(README.blocks("python")[0])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    shown = next(block for block in README.blocks("") if block.startswith("Plan for"))
    assert _names(printed) == _names(shown)


def _names(text: str) -> list[str]:
    lines = text[text.index("setting  ") :].splitlines()
    return [line[:15].strip() for line in lines[: lines.index("")]]


@pytest.mark.parametrize("library", ["lightning", "transformers"])
@pytest.mark.filterwarnings("ignore")  # what other libraries warn of is their affair
def test_code_of_other_trainers_runs(library: str, place: Path) -> None:
    """What docs/coming-from.md says of another trainer is true of the version that is installed."""
    pytest.importorskip(library)
    page = Page(ROOT / "docs" / "coming-from.md")
    theirs = next(block for block in page.blocks("py") if re.search(rf"^(import|from) {library}\b", block, re.MULTILINE))
    script = place / "theirs.py"
    script.write_text(f"{page.blocks('python')[0]}\n{theirs}")
    runpy.run_path(str(script), run_name="__main__")


def test_code_of_fastai_runs(place: Path) -> None:
    """In a process of its own, because fastai changes torch's tensors."""
    site = Path(sys.prefix) / "fastai"
    if not (site / "fastai").is_dir():
        pytest.skip("fastai is not installed: scripts/test does it")
    page = Page(ROOT / "docs" / "coming-from.md")
    theirs = next(block for block in page.blocks("py") if "from fastai" in block)
    (place / "theirs.py").write_text(theirs)
    environment = {**os.environ, "PYTHONPATH": str(site), "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run([sys.executable, "theirs.py"], cwd=place, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (place / "model.pkl").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks("yaml")], **ids)
def test_yaml_blocks_validate(page: Page, place: Path) -> None:
    for block in page.blocks("yaml"):
        for written in yaml.safe_load_all(block):
            if "stages" in written:
                pipeline_from(written, place / "pipeline.yaml")
                continue
            recipe_from({**BASE, **written}, place)
            if "data" in written and "pretrained" not in written.get("model", ""):  # whose model may be a download
                assert len(parse_data(written["data"], place, place / "cache").train) > 0


def test_the_shell_session_of_the_readme(place: Path) -> None:
    shutil.copy(ROOT / "examples" / "digits.yaml", place / "mine.yaml")
    tiny = ["budget=2 epochs"]
    _flatout("explain", "mine.yaml")
    _flatout("run", "mine.yaml", "lr=1e-3", *tiny, "--quiet")
    _flatout("evaluate", "last")
    _flatout("run", "mine.yaml", *tiny, "--quiet", "--json")
    _flatout("runs")
    _flatout("runs", "show", "last")
    _flatout("runs", "compare", "mine-1", "last")
    _flatout("predict", "last", "test.npz", "--out", "predictions.parquet")
    _flatout("evaluate", "mine-1", "--data", "test.npz", "--json")
    _flatout("env")
    assert (place / "predictions.parquet").exists()
    assert (place / "runs" / "mine-2" / "model.safetensors").exists()


# ---- examples ----


RECIPES = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".yaml", ".py") and path.stem != "pipeline"]


@pytest.mark.parametrize("name", sorted(RECIPES))  # the pipeline runs in tests/pipelines
def test_examples_run(name: str, place: Path) -> None:
    shutil.copy(ROOT / "examples" / name, place / name)
    smaller = ["model.layers=1", "model.width=12", "data.window=32"] if name.startswith("shakespeare") else []
    recipe = read_recipe(place / name, [*smaller, "budget=3 steps", "batch=8"])
    run = flatout.run(recipe)
    assert run.result["status"] == "finished" and run.result["steps"] == 3


def test_the_demo_is_the_example() -> None:
    shipped = ROOT / "src" / "flatout" / "cli" / "digits.yaml"
    assert shipped.read_text() == (ROOT / "examples" / "digits.yaml").read_text()


# ---- style ----


@pytest.mark.parametrize("page", PAGES, **ids)
def test_plain_text(page: Page) -> None:
    assert "@@" not in page.text and "TODO" not in page.text
    for character in set(page.text):
        assert ord(character) < 0x2000, f"{page.name}: {character!r}"


def _flatout(*arguments: str) -> None:
    before = list(sys.path)
    try:
        app(list(arguments), standalone_mode=False)
    finally:
        sys.path[:] = before
