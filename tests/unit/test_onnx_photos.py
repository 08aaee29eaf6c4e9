"""The ONNX file of photos takes upright pixels of any size and crops them as evaluation does, in plain onnxruntime."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from onnx_models import answers, exported, metadata, pass_through

from flatout.data.augment.crops import CenterCrop
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.data.normalize import Normalize
from flatout.data.source import Column
from flatout.engine.prepared_model import PreparedModel
from flatout.models.convnet import convnet
from flatout.objectives.build import build
from flatout.packaging.onnx_photos import with_raw_photos

CROP = CenterCrop(16, 19)
HOST = PhotoHost(19, "auto", ("ants", "bees"))


def photos(rows: int, height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rows).integers(0, 256, (rows, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(("height", "width"), [(19, 19), (101, 67), (67, 101), (40, 1000), (11, 17), (222, 223)])
def test_photos_are_cropped_as_in_evaluation(height: int, width: int) -> None:
    model = with_raw_photos(pass_through({"x": (TensorProto.UINT8, ["rows", 3, 16, 16])}), HOST, CROP)
    given = photos(5, height, width)
    found = answers(model, {"photo": given})["x_out"].astype(int)
    wanted: Any = CROP(HOST.rows(list(given)), None)["x"].numpy().astype(int)  # type: ignore[arg-type]
    apart = np.abs(found - wanted)
    assert found.shape == (5, 3, 16, 16)
    assert apart.max() <= (0 if min(height, width) == 19 else 1)  # torch's weights have 16 bits, onnxruntime's 22
    assert (apart > 0).mean() < 0.03


@pytest.fixture(scope="module")
def insects() -> PreparedModel:
    schema = {"pixels": Column(torch.uint8, (), "start")}
    schema |= {name: Column(torch.int64, ()) for name in ("start", "height", "width")}
    steps = [CROP, Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), scale=1 / 255)]
    torch.manual_seed(0)
    model = convnet((3, 16, 16), 2, channels=(4, 8), hidden=8).eval()
    return PreparedModel(model, Fitted(HOST, DevicePart(steps), schema), build("classify"), lambda device: "fp32")


@pytest.fixture(scope="module")
def insects_file(insects: PreparedModel) -> onnx.ModelProto:
    return with_raw_photos(exported(insects, {"x": torch.zeros(2, 3, 16, 16, dtype=torch.uint8)}, skip=1), HOST, CROP)


@pytest.mark.parametrize(("rows", "size", "close"), [(1, (31, 19), 1e-5), (5, (19, 45), 1e-5), (64, (53, 47), 1e-3)])
def test_photos_are_predicted_as_by_the_run(
    rows: int, size: tuple[int, int], close: float, insects: PreparedModel, insects_file: onnx.ModelProto
) -> None:
    given = photos(rows, *size)
    found = answers(insects_file, {"photo": given})
    wanted = insects._fitted.name_outputs(insects.predict(list(given)), "classify")
    assert list(found) == list(wanted) == ["prediction", "class", "probability", "probabilities"]
    np.testing.assert_allclose(found["probabilities"], np.asarray(wanted["probabilities"]), atol=close)
    assert found["class"].tolist() == np.asarray(wanted["class"]).tolist()


def test_the_file_says_what_training_did_before(insects_file: onnx.ModelProto) -> None:
    notes = metadata(insects_file)
    assert json.loads(notes["signature"])["inputs"] == [
        {"column": "photo", "kind": "photo", "name": "photo", "dtype": "uint8", "shape": [None, None, None, 3]}
    ]
    for fact in ("EXIF", "scaled DCT", "upright", "at least 19 pixels", "16 x 16"):
        assert fact in notes["rules"]
