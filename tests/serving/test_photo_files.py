"""Photos that the executor decodes: which files go there, and that their answers are those of the front's own decoding."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flatout.data.decoding.nvjpeg import has_end
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.serving.device_photos import DevicePhotos, device_photos
from flatout.serving.photo_files import HEAD, head_of, read_head

CPU = torch.device("cpu")


def photo(height: int, width: int, kind: str = "jpeg", **options: Any) -> bytes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return photo(30, 44, exif=exif)


def test_the_head_of_a_file_says_how_it_is_decoded() -> None:
    head = head_of(photo(375, 500), cover=232)
    assert head is not None
    nbytes, planned = read_head(memoryview(head), 0)
    assert nbytes == len(photo(375, 500)) and (planned.stage_height, planned.stage_width) == (235, 313)
    turned_head = head_of(turned(6), cover=16)
    assert turned_head is not None and HEAD.unpack(turned_head)[-1] == 6


@pytest.mark.parametrize(
    "content",
    [
        photo(40, 40, "png"),
        photo(40, 40, progressive=True),
        photo(40, 40)[:-40],
        b"\xff\xd8\xff\xd9",
        b"",
        photo(40, 40).replace(b"\x00\x28\x00\x28", b"\xff\xff\xff\xff"),  # 65,535 x 65,535 pixels, it says
    ],
    ids=["png", "progressive", "cut off", "no picture", "nothing", "a bomb"],
)
def test_other_files_are_left_to_the_front(content: bytes) -> None:
    assert head_of(content, cover=16) is None


def test_an_end_may_be_followed_by_a_little(tmp_path: Path) -> None:
    assert has_end(photo(20, 20) + bytes(100)) and not has_end(photo(20, 20) + bytes(5000))


def test_the_inputs_are_those_of_the_front(packaged: Any) -> None:
    package = packaged("photos").package()
    files = [photo(30, 44), turned(6), turned(3), photo(64, 50, quality=40)]
    heads = [head_of(file, package.fitted.host.cover) for file in files]
    assert all(head is not None for head in heads)
    made = DevicePhotos(package, CPU).prepared(
        [
            (torch.frombuffer(bytearray(file), dtype=torch.uint8), read_head(memoryview(head), 0)[1])
            for file, head in zip(files, heads, strict=True)
            if head is not None
        ]
    )
    wanted = package.fitted.device.steps[0](package.fitted.rows(files), None)
    assert torch.equal(made["x"], wanted["x"])


def test_where_photos_are_decoded(packaged: Any) -> None:
    package, table = packaged("photos").package(), packaged("classes_table").package()
    runtime, said = EagerRuntime.load(package.parts(CPU)), list[str]()
    assert device_photos(package, runtime, CPU, "host", "pictures", said.append) is None
    assert device_photos(package, runtime, CPU, "auto", "pictures", said.append) is None  # the executor of a CPU has no time
    assert device_photos(table, runtime, CPU, "device", "people", said.append) is None
    assert not said
    assert device_photos(package, runtime, CPU, "device", "pictures", said.append) is not None
    assert "photos are decoded by the process of the model; 3 answers differ from the run's by at most" in said[0]


def test_a_package_without_jpegs_is_decoded_by_the_front_unless_asked(packaged: Any) -> None:
    package, said = packaged("photos").package(), list[str]()
    runtime = EagerRuntime.load(package.parts(CPU))
    pngs = tuple(photo(30, 30, "png") for _ in package.samples.photos)
    vars(package)["samples"] = replace(package.samples, photos=pngs)
    assert device_photos(package, runtime, CPU, "device", "pictures", said.append) is not None
    assert "decoded by the process of the model as asked" in said[0] and "has no JPEGs" in said[0]


def test_answers_that_differ_are_said(packaged: Any) -> None:
    package, said = packaged("photos").package(), list[str]()

    class Wrong(EagerRuntime):
        def run(self, rows: Any) -> dict[str, torch.Tensor]:
            made = super().run(rows)
            return {**made, "probabilities": made["probabilities"].roll(1, 1)}

    wrong = Wrong.load(package.parts(CPU))
    assert device_photos(package, wrong, CPU, "device", "pictures", said.append) is not None
    assert "as asked, though answers differ from the run's: probabilities differs by" in said[0]
