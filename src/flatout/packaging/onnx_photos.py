"""A complete ONNX file of photos: upright pixels of any size are scaled and cropped in the file, as in evaluation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from flatout.data.augment.crops import CenterCrop
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.packaging.onnx_front import FrontGraph, describe, input_names, with_front
from flatout.packaging.onnx_libraries import library
from flatout.packaging.ports import Port
from flatout.packaging.samples import Samples

if TYPE_CHECKING:
    import onnx


def with_raw_photos(model: onnx.ModelProto, host: PhotoHost, crop: CenterCrop) -> onnx.ModelProto:
    """`model` takes `x`, uint8 [rows, 3, size, size]; the new model takes `photo`, uint8 [rows, height, width, 3].

    All photos of one call have the same size. With class names there is an output `class` of text.
    """
    assert crop.size is not None and crop.resize is not None
    name = input_names(["photo"], model)["photo"]
    raw = Port(name, "uint8", (None, None, None, 3))
    front = FrontGraph()
    made = {model.graph.input[0].name: _cropped(front, name, crop.size, crop.resize, crop.interpolation)}
    whole = with_front(model, front, [raw], made, host.class_names)
    describe(whole, _rules(host, crop), [{"column": "photo", "kind": "photo", **raw.to_json()}], host.class_names)
    return whole


def _cropped(front: FrontGraph, photo: str, size: int, resize: int, interpolation: str) -> str:
    """As `center_window` and `resample` do: short side to `resize`, rounded to uint8, then the middle `size` x `size`."""
    types = library("onnx").TensorProto
    sides = front.call("Shape", photo, start=1, end=3)
    short = front.call("ReduceMin", sides, keepdims=1)
    scaled = front.call("Div", front.call("Mul", sides, front.constant(resize, np.int64)), short)
    planes = front.call("Transpose", photo, perm=[0, 3, 1, 2])
    sizes = front.call("Concat", front.call("Shape", planes, start=0, end=2), scaled, axis=0)
    linear = interpolation == "bilinear"
    how = {"mode": "linear"} if linear else {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    resized = front.call("Resize", planes, "", "", sizes, antialias=1, coordinate_transformation_mode="half_pixel", **how)
    spare = front.call("Cast", front.call("Sub", scaled, front.constant(size, np.int64)), to=types.DOUBLE)
    half = front.call("Round", front.call("Div", spare, front.constant(2, np.float64)))  # to even, as `center_window`
    start = front.call("Cast", half, to=types.INT64)
    end = front.call("Add", start, front.constant(size, np.int64))
    return front.call("Slice", resized, start, end, front.constant([2, 3], np.int64))


def _rules(host: PhotoHost, crop: CenterCrop) -> list[str]:
    return [
        "photo is uint8 [rows, height, width, 3]: red, green and blue, upright, of any size. "
        "All photos of one call have the same size.",
        f"The file scales the short side to {crop.resize} pixels ({crop.interpolation}, antialiased) and takes the middle "
        f"{crop.size} x {crop.size}.",
        "Training rotated photos by their EXIF orientation: rotate the pixels before the call.",
        "Training decoded a JPEG at the smallest n/8 of its size (scaled DCT) whose short side has at least "
        f"{host.cover} pixels, and reduced larger images by a whole number (means of squares). "
        "Pixels decoded at full size give slightly different outputs.",
        "Training made transparent parts white, converted grey and CMYK to RGB, and used the upper 8 of 16 bits.",
    ]


def full_size_difference(path: Path, samples: Samples) -> float:
    """The largest difference of a float output between whole photos as pixels and the same files decoded as in training."""
    loaded = library("onnxruntime")
    session = loaded.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.type.startswith("tensor(float")]
    far = 0.0
    for row, content in enumerate(samples.photos):
        with Image.open(io.BytesIO(content)) as photo:
            pixels = np.asarray(ImageOps.exif_transpose(photo).convert("RGB"))
        made = session.run(names, {session.get_inputs()[0].name: pixels[None]})
        for name, output in zip(names, made, strict=True):
            far = max(far, float(np.abs(output[0] - samples.outputs[name][row].numpy()).max()))
    return far
