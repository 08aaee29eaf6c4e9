"""Our own protocols say what they can do: nobody finds out by looking for an attribute, or by asking for a class.

`getattr` and `hasattr` with a name written out are for objects that others made, in the modules listed here. A default that
hides whether a member exists, on a Source, a Feed, an Objective, a Transform, a Knob or a Remedy, belongs into the protocol.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from flatout.data.source import Source

SOURCE = Path(__file__).parent.parent / "src" / "flatout"

FOREIGN = {  # whose attributes are looked for there
    "base/installed.py": "modules of any package",
    "base/source.py": "any Python object whose code is asked for",
    "boost/plain_update.py": "torch: what a GradScaler sets on a fused optimizer for the time of its step",
    "boost/keeping.py": "multiprocessing",
    "boost/patching.py": "nodes of a syntax tree",
    "boost/protection/redirect.py": "modules of any package",
    "boost/remedies/attention_scores.py": "functions of torch",
    "boost/remedies/dataset_state.py": "the user's dataset",
    "boost/remedies/graph_capture.py": "the user's modules",
    "boost/remedies/resident.py": "the user's dataset and sampler",
    "boost/remedies/script_state.py": "objects of the user's script",
    "cli/boost_ranks.py": "what the operating system has",
    "cli/slips.py": "an error of typer",
    "notebook/speaking.py": "the shell of a notebook",
    "data/given.py": "whatever the user has as data",
    "data/sources/datasets/dataset.py": "the user's dataset",
    "data/sources/datasets/rowtask.py": "the user's dataset",
    "data/sources/datasets/samples.py": "a sample of the user's dataset",
    "data/sources/datasets/streamtask.py": "the user's iterable and its iterator",
    "data/sources/photos/listing.py": "the user's labels: a list, an array or a tensor",
    "data/files/places.py": "what the operating system has",
    "data/sources/tables/frames.py": "tables of other libraries",
    "data/sources/tables/arrow.py": "a type of Arrow",
    "data/sources/tables/utf8.py": "an error of Python's decoder",
    "data/sources/texts/tokens.py": "what the operating system has",
    "data/workers/arena.py": "what the operating system has",
    "data/workers/parcel.py": "the user's main module",
    "doctor/observing/calling.py": "the user's modules",
    "doctor/observing/compiling.py": "records of torch's compiler",
    "doctor/observing/fetching.py": "objects of the user's script",
    "doctor/observing/growing.py": "objects of the user's script",
    "doctor/observing/loading.py": "the user's DataLoader and dataset",
    "engine/generation/transformers_models.py": "models of transformers",
    "engine/optimizers.py": "parameters, which torch may have spread over a mesh",
    "engine/parallel/context.py": "what torch has",
    "engine/parallel/norms.py": "gradients, which torch may have spread over a mesh",
    "engine/signals.py": "what the operating system has",
    "engine/one_process.py": "parameters, which torch may have spread over a mesh",
    "engine/surroundings.py": "what torch has, functions of torch",
    "fleet/replica.py": "what psutil tells of a process on this operating system",
    "machine/paging.py": "the C library",
    "world/watch/dumps.py": "what the operating system has",
    "models/head.py": "the user's modules",
    "models/libraries/torchvision_models.py": "a setting of torchvision",
    "models/libraries/transformers_models.py": "transformers and its configurations",
    "models/parts.py": "models of timm",
    "objectives/chunked_loss.py": "the user's model and its head",
    "objectives/joining.py": "the meter of the user's objective",
    "objectives/inputs.py": "what the user's model gives",
    "plan/knobs/loss_head.py": "the head of the user's model",
    "recipe/schema.py": "the user's optimizer",
    "store/lock.py": "what the operating system has",
    "doctor/observing/looking.py": "nodes of torch's graph of gradients",
    "pipelines/identity/ordering.py": "nodes of a syntax tree",
    "explore/survey/attention.py": "what the operating system has",
}

OF_TIERS = {  # members of Source that only our own sources have a reason to override
    "row_sizes", "at_hand", "release", "placed", "shapes_vary", "rows_per_batch", "stored_rows", "typical_batch", "padded_to",
}  # fmt: skip
KINDS = ("Source", "Feed", "Knob", "Remedy", "Transform")  # how the names of their classes end


def calls(path: Path, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def probes() -> Iterator[tuple[str, int]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for call in calls(path, "getattr", "hasattr"):
            if len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
                yield named(path), call.lineno


def test_only_objects_of_others_are_searched_for_attributes() -> None:
    ours = [f"{name}:{line}" for name, line in probes() if name not in FOREIGN]
    assert not ours, f"declare the member in its protocol, with a default, and ask for it: {', '.join(ours)}"


def test_every_module_that_is_listed_needs_to_be() -> None:
    assert set(FOREIGN) <= {name for name, _ in probes()}


def test_no_source_or_feed_is_asked_for_its_class() -> None:
    asked = [
        f"{named(path)}:{call.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if named(path) != "plan/knobs/all.py"  # it sorts the files of settings, which are modules
        for call in calls(path, "isinstance", "issubclass")
        for kind in ast.walk(call.args[1])
        if isinstance(kind, ast.Name) and kind.id.endswith(KINDS)
    ]
    assert not asked, f"let it say what it can do, or do it: {', '.join(asked)}"


def test_tiers_and_feeds_know_sources_by_their_protocol_alone() -> None:
    kinds = ("sources/datasets", "sources/photos", "sources/tables", "sources/texts", "workers")
    for path in [*(SOURCE / "data" / "feeds").glob("*.py"), *(SOURCE / "data" / "cache").glob("*.py")]:
        reached = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        found = [name for name in reached if name.startswith(tuple(f"flatout.data.{kind.replace('/', '.')}" for kind in kinds))]
        assert not found, f"{named(path)} imports {', '.join(found)}"
    for kind in kinds:
        for path in (SOURCE / "data" / kind).rglob("*.py"):
            assert "flatout.data.feeds" not in path.read_text(), f"{named(path)}: a source knows nothing of what serves it"


def test_the_docs_say_what_of_a_source_may_be_overridden() -> None:
    page = (SOURCE.parent.parent / "docs" / "extend.md").read_text()
    table = page[page.index("You may override:") : page.index("`read` is called by several threads")]
    told = {name.strip("` ") for line in table.splitlines() if line.startswith("| `") for name in line.split("|")[1].split(",")}
    members = {name for name in vars(Source) if not name.startswith("_")}
    assert told == members - Source.__abstractmethods__ - OF_TIERS
