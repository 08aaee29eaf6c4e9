"""A server that decodes photos on the GPU: nearly the pixels of training, and answers within the tolerance of the run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import flatout as fo
from flatout.packaging.package import Package
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.serving.device_photos import DevicePhotos, device_photos
from flatout.serving.photo_files import head_of, read_head

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    place = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for number in range(24):
        small = draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((160 + number, 120), Image.Resampling.BICUBIC)
        file = place / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.save(file, quality=90, subsampling=number % 3)
    data = fo.data.images(str(place / "photos"), size=64, holdout=0.5)
    recipe = fo.Recipe(data=data, model={"convnet": {"channels": [8, 16]}}, batch=8, lr=1e-3, budget="4 steps",
                       settings={"device": "cuda", "precision": "bf16"})  # fmt: skip
    run = fo.run(recipe, runs=place / "runs", cache=None, planning="off")
    made: Package = fo.export(run, place / "package", cache=None)
    return made


def file_of(content: bytes, cover: int) -> Any:
    head = head_of(content, cover)
    assert head is not None
    return torch.frombuffer(bytearray(content), dtype=torch.uint8), read_head(memoryview(head), 0)[1]


def test_answers_agree_with_the_run(package: Package) -> None:
    said: list[str] = []
    runtime = EagerRuntime.load(package.parts(CUDA))
    assert device_photos(package, runtime, CUDA, "auto", "photos", said.append) is not None
    assert "photos are decoded by nvJPEG" in said[0]


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_pixels_are_nearly_those_of_training(package: Package, orientation: int) -> None:
    draw = np.random.default_rng(orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    contents = []
    for number in range(6):
        small = draw.integers(0, 256, (9, 13, 3), dtype=np.uint8)
        written = io.BytesIO()
        picture = Image.fromarray(small).resize((200 + 40 * (number % 2), 150), Image.Resampling.BICUBIC)
        picture.save(written, "jpeg", quality=92, subsampling=0, exif=exif)
        contents.append(written.getvalue())
    host: Any = package.fitted.host
    made = DevicePhotos(package, CUDA).prepared([file_of(one, host.cover) for one in contents])["x"].cpu()
    wanted = package.fitted.device.steps[0](package.fitted.rows(contents), None)["x"]  # type: ignore[arg-type]
    assert made.shape == wanted.shape and (made.int() - wanted.int()).abs().float().mean() < 2.0


def test_a_file_that_is_no_photo_is_an_error_of_its_own(package: Package, tmp_path: Path) -> None:
    host: Any = package.fitted.host
    good = package.samples.photos[0]
    begin = good.index(b"\xff\xda")
    damaged = good[:begin] + b"\xff\xda\x00\x02" + bytes(64) + b"\xff\xd9"
    head = head_of(damaged, host.cover)
    photos = DevicePhotos(package, CUDA)
    if head is not None:
        with pytest.raises(RuntimeError):
            photos.prepared([file_of(damaged, host.cover)])
    torch.cuda.synchronize()
    assert photos.prepared([file_of(good, host.cover)])["x"].shape[0] == 1  # the device is still of use
