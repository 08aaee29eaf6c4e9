"""A package is data from elsewhere: whatever is in it, reading it runs no code, and what can't be used is named."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaged_runs import KINDS, Exported, change_json, reseal
from safetensors.torch import load_file, save_file

from flatout.base.errors import DamagedFile, FlatoutError, ModelError
from flatout.packaging.operators import operator_called
from flatout.packaging.package import open_package
from flatout.packaging.program import Program
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime


@pytest.fixture(scope="module")
def changed(
    exported: Callable[[str], Exported], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Callable[[Any], Any]], Any]:
    """`changed(edit)`: the program of a package whose program.json was edited, with a manifest that fits, and its weights."""
    folder = exported("several").copy(tmp_path_factory.mktemp("changed") / "package")
    intact = (folder / "program.json").read_bytes()

    def read(edit: Callable[[Any], Any]) -> Any:
        (folder / "program.json").write_bytes(intact)
        change_json(folder, "program.json", edit)
        package = open_package(folder)
        return package.program, package.weights

    return read


def first_call(program: Any) -> Any:
    return next(node for node in program["nodes"] if "call" in node)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_a_package_is_pickled_or_compiled(kind: str, exported: Callable[[str], Exported]) -> None:
    known = {"card.json", "fitted.json", "manifest.json", "program.json", "signature.json", "samples.json", "model.onnx"}
    for file in exported(kind).path.iterdir():
        content = file.read_bytes()
        assert file.name in known | {"weights.safetensors", "samples.safetensors", "statistics.json"}
        assert not content.startswith((b"\x80", b"PK", b"\x7fELF", b"GIF", b"#!")), file.name
        if file.suffix == ".json":
            json.loads(content)
        elif file.suffix == ".safetensors":
            load_file(file)
        assert b"torch._utils" not in content and b"_rebuild_tensor" not in content and b"__reduce__" not in content


CALLS = (
    "aten.from_file.default", "aten.save.default", "aten.warn.default", "aten._print.default", "aten.add_.Tensor",
    "aten.manual_seed.default", "aten.set_grad_enabled.default", "aten._reshape_alias.default", "aten.resize_.default",
    "aten.backward.default", "aten.copy_.default", "aten.relu_.default", "aten.format.default", "aten.set_data.default",
    "torch.load", "torch.hub.load", "os.system", "builtins.eval", "builtins.exec", "operator.attrgetter", "operator.setitem",
    "operator.methodcaller", "math.factorial", "aten.no_such_operator.default", "aten.relu.no_such_overload",
    "aten.__class__.mro", "aten.relu.__class__", "aten.relu.decompose", "aten.relu._schema",
    "inductor.accumulate_grad_.default", "torch.ops.aten.relu.default", "aten.relu.default\n", "aten.relu.default'", "", ".",
    "flatout_tests.doubled.default", "_c10d_functional.broadcast.default", "aten.relu",
)  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_program_calls_only_functions_of_tensors(name: str, changed: Any) -> None:
    with pytest.raises(ModelError) as error:
        changed(lambda program: first_call(program).update(call=name))
    assert "program.json" in str(error.value) and repr(name)[1:-1] in str(error.value)


def test_operators_that_programs_need_are_allowed() -> None:
    for name in ("aten.linear.default", "aten.sym_size.int", "operator.getitem", "aten.arange.start", "aten.full.default",
                 "aten.convolution.default", "aten.scaled_dot_product_attention.default", "math.ceil", "aten.item.default",
                 "aten.batch_norm.default", "aten.lstm.input", "aten.zeros.default", "aten.embedding.default"):  # fmt: skip
        assert callable(operator_called(name))


STRANGE: dict[str, Callable[[Any], Any]] = {
    "a name that is code": lambda call: call.update(kwargs={"a=print('pwned') or None, b": 1}),
    "a name with a newline": lambda call: call.update(kwargs={"dtype\nimport os\n": 1}),
    "a name of no argument": lambda call: call.update(kwargs={"other_name": 1}),
    "an unknown kind": lambda call: call["args"].append({"path": "/etc/passwd"}),
    "two kinds": lambda call: call["args"].append({"node": 0, "dtype": "float32"}),
    "no kind": lambda call: call["args"].append({}),
    "a later node": lambda call: call["args"].append({"node": 10_000}),
    "itself": lambda call: call["args"].append({"node": call["here"]}),
    "a negative node": lambda call: call["args"].append({"node": -1}),
    "a node that is text": lambda call: call["args"].append({"node": "0"}),
    "a node that is true": lambda call: call["args"].append({"node": True}),
    "a type that is none": lambda call: call["args"].append({"dtype": "load"}),
    "a type that is a list": lambda call: call["args"].append({"dtype": ["float32"]}),
    "a format that is none": lambda call: call["args"].append({"memory_format": "elsewhere"}),
    "a float that is none": lambda call: call["args"].append({"float": "__import__"}),
    "a slice of one": lambda call: call["args"].append({"slice": [1]}),
    "a complex of text": lambda call: call["args"].append({"complex": ["1", "2"]}),
    "too many arguments": lambda call: call["args"].extend([1] * 40),
    "no arguments": lambda call: call.pop("args"),
    "arguments that are a number": lambda call: call.update(args=3),
    "names that are a list": lambda call: call.update(kwargs=[1]),
    "an input out of range": lambda call: (call.clear(), call.update(input=2)),
    "a negative input": lambda call: (call.clear(), call.update(input=-1)),
    "an input that is text": lambda call: (call.clear(), call.update(input="x")),
    "a weight that is not there": lambda call: (call.clear(), call.update(weight="../../secret")),
    "nothing": lambda call: call.clear(),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_nodes_are_refused(what: str, changed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def edit(program: Any) -> None:
        call = first_call(program)
        call["here"] = program["nodes"].index(call)
        STRANGE[what](call)
        call.pop("here", None)

    with pytest.raises((DamagedFile, ModelError)) as error:
        changed(edit)
    assert "program.json" in str(error.value) or "weights.safetensors" in str(error.value)
    assert "pwned" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [[], {}, None, 3, {"format": 2}, {"format": 1}, {"format": "1"}, {"format": 1, "nodes": 5}])
def test_a_program_that_is_none_is_refused(content: Any, exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("several")
    folder = made.copy(tmp_path / "package")
    (folder / "program.json").write_text(json.dumps(content))
    reseal(folder)
    with pytest.raises(DamagedFile, match=r"program\.json"):
        open_package(folder).predict(made.rows(2))


@pytest.mark.parametrize("name", ["card.json", "fitted.json", "program.json", "samples.safetensors", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 5000, b'{"version": 1}'])
def test_files_with_other_content_are_named(
    name: str, content: bytes, exported: Callable[[str], Exported], tmp_path: Path
) -> None:
    made = exported("several")
    folder = made.copy(tmp_path / "package")
    (folder / name).write_bytes(content)
    reseal(folder)
    with pytest.raises(FlatoutError) as error:
        open_package(folder).predict(made.rows(2))
    assert name in str(error.value)


def test_tensors_of_other_shapes_are_not_used(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("several")
    folder = made.copy(tmp_path / "package")
    weights = load_file(folder / "weights.safetensors")
    for edit in (lambda one: one[:1].contiguous(), lambda one: one + 0.1, lambda one: one.double()):
        save_file({name: edit(one) for name, one in weights.items()}, folder / "weights.safetensors")
        reseal(folder)
        for ask in (lambda: open_package(folder).predict(made.rows(2)), lambda: open_package(folder).model()):
            with pytest.raises(ModelError, match="does not give the run's outputs"):
                ask()


@pytest.mark.parametrize("place", ["/etc/passwd", "../outside.safetensors", "..", ""])
def test_an_onnx_file_refers_to_its_own_folder_only(place: str, exported: Callable[[str], Exported], tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto

    folder = exported("classes_table").copy(tmp_path / "package")
    (tmp_path / "outside.safetensors").write_bytes(b"\0" * 100_000)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", place), ("offset", "0"), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(DamagedFile, match=r"model\.onnx.*not a file next to it"):
        OnnxRuntime(folder / "model.onnx", torch.device("cpu"))
    (folder / "model.onnx").write_bytes(b"no model at all")
    with pytest.raises(DamagedFile, match=r"model\.onnx can't be read as ONNX"):
        OnnxRuntime(folder / "model.onnx", torch.device("cpu"))


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "builtins:eval", "importlib.util:find_spec"])
@pytest.mark.parametrize("key", ["model", "objective"])
def test_a_package_of_code_names_no_function_of_python(
    name: str, key: str, exported: Callable[[str], Exported], tmp_path: Path
) -> None:
    made = exported("several")
    folder = made.copy(tmp_path / "package")
    program = json.loads((folder / "program.json").read_text())
    recipe = {"model": "mlp", "objective": "classify", key: {name: {"command": f"touch {tmp_path / 'pwned'}"}}}
    ports = {key: program[key] for key in ("inputs", "outputs")}
    code = {"format": 1, **ports, "recipe": recipe, "data": {}, "weights": []}
    (folder / "code.json").write_text(json.dumps(code))
    reseal(folder)
    with pytest.raises(ModelError, match=name):
        open_package(folder).predict(made.rows(2))
    assert not (tmp_path / "pwned").exists()


def test_steps_of_the_preparation_are_looked_up_by_name(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("several")
    steps = ["os:system", {"os:system": "true"}, {"table": {"x": 1}}, {"normalize": {"no_such": 1}}, 3, {}]
    for place, step in enumerate(steps):
        folder = made.copy(tmp_path / f"package-{place}")
        change_json(folder, "fitted.json", lambda fitted, step=step: fitted.update(device=[step]))
        with pytest.raises(FlatoutError, match=r"fitted\.json"):
            open_package(folder).predict(made.rows(2))


def test_programs_with_random_changes_answer_or_say_why(exported: Callable[[str], Exported]) -> None:
    """Read and built as a package does; what still can be built may only fail as parity does, with a sentence."""
    made = exported("several")
    package = made.package()
    intact = package.program.to_json()
    drawn = random.Random(0)
    refused = built = 0
    for _ in range(400):
        program = copy.deepcopy(intact)
        for _ in range(drawn.randint(1, 3)):
            _spoil(program, drawn)
        try:
            read = Program.from_json(program)
            assert set(read.weight_names) <= set(package.weights), "named by the package"
        except FlatoutError:
            refused += 1
            continue
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError):
            refused += 1  # `PackageFolder.parsed` names the file
            continue
        read.module(package.weights, torch.device("cpu"))
        built += 1
    assert refused > 50 and built > 20, (refused, built)


def _spoil(program: Any, drawn: random.Random) -> None:
    """One value somewhere becomes another one."""
    plain = (None, -1, 0, 10**30, math.inf, "", "aten.relu.default", True, "\n'\"")
    values = (*plain, [], {}, {"node": 3}, [[1]], {"dtype": "int8"})
    place: Any = program
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = drawn.choice(keys)
        if isinstance(place[key], dict | list) and drawn.random() < 0.85:
            place = place[key]
            continue
        if drawn.random() < 0.2:
            del place[key]
        else:
            place[key] = copy.deepcopy(drawn.choice(values))
        return
