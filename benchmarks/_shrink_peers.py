"""What NNCF's accuracy control and Olive make of an ONNX file. Run in an environment of its own: they pin other libraries.

python _shrink_peers.py nncf|olive FOLDER: FOLDER has core.onnx and rows.npz (calibrating and judging rows, by the names of the
model's values, and the labels y); writes made.onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROWS, AT_ONCE = 300, 64  # NNCF's default number of calibration rows


def by_nncf(folder: Path, rows: dict[str, Any]) -> onnx.ModelProto:
    import onnxruntime

    nncf: Any = import_module("nncf")  # neither is in this checkout's environment
    names = [value.name for value in onnx.load(folder / "core.onnx").graph.input]
    calibrating = [{name: rows[f"calibrating/{name}"][at : at + 1] for name in names} for at in range(ROWS)]
    y = rows["y"].reshape(-1)
    judging = [
        ({name: rows[f"judging/{name}"][at : at + AT_ONCE] for name in names}, y[at : at + AT_ONCE])
        for at in range(0, len(y), AT_ONCE)
    ]

    def accuracy(model: onnx.ModelProto, items: Iterable[Any]) -> tuple[float, None]:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        right = [session.run(["prediction"], given)[0].reshape(-1) == wanted for given, wanted in items]
        return float(np.concatenate(right).mean()), None

    made: onnx.ModelProto = nncf.quantize_with_accuracy_control(
        onnx.load(folder / "core.onnx"),
        calibration_dataset=nncf.Dataset(calibrating),
        validation_dataset=nncf.Dataset(judging),
        validation_fn=accuracy,
        max_drop=0.005,
    )
    return made


def by_olive(folder: Path, rows: dict[str, Any]) -> onnx.ModelProto:
    import_module("olive.workflows").run({
        "input_model": {"type": "ONNXModel", "model_path": str(folder / "core.onnx")},
        "passes": {"quantize": {"type": "OnnxDynamicQuantization"}},
        "output_dir": str(folder / "olive"), "cache_dir": str(folder / "cache"), "log_severity_level": 3,
    })  # fmt: skip
    (file,) = list((folder / "olive").rglob("*.onnx"))[:1]
    return onnx.load(file)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    with np.load(place / "rows.npz") as kept:
        given = {name: kept[name] for name in kept.files}
    onnx.save({"nncf": by_nncf, "olive": by_olive}[sys.argv[1]](place, given), place / "made.onnx")
