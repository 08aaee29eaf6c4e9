"""Photos from files: what is found, what is said of bad ones, and that decoded pixels are right whatever the format."""

from __future__ import annotations

import io
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from flatout.base.errors import DataError, MachineError, UsageError
from flatout.data.decoding.decode import decode_one, plan
from flatout.data.decoding.decoders import make_decoder
from flatout.data.decoding.headers import exif_orientation, read_header
from flatout.data.files.bad import Bad, OnBad
from flatout.data.sources.photos.labels import Labels
from flatout.data.sources.photos.listing import Photos, find_photos, look_into
from flatout.data.sources.photos.source import PhotoSource

Shared = Callable[[str], Path]


def scene(height: int = 48, width: int = 64) -> Image.Image:
    """Smooth, so that a lossy format keeps it, and different in every corner and colour."""
    down, across = np.mgrid[0:height, 0:width] / [[[height]], [[width]]]
    colours = np.stack([60 + 150 * across, 40 + 170 * down, 200 - 120 * across * down], -1)
    return Image.fromarray(colours.round().astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decoded(content: bytes, cover: int = 10_000) -> np.ndarray[Any, Any]:
    header = read_header(io.BytesIO(content))
    columns = [np.array([value]) for value in (header.height, header.width, header.orientation, header.turbo)]
    plans = plan(*columns, cover)
    height, width = int(plans.height[0]), int(plans.width[0])
    out = np.empty(height * width * 3, np.uint8)
    problem = decode_one(content, plans.of([0])[0], out)
    assert problem is None, problem
    return out.reshape(height, width, 3)


def worst(one: Any, other: Any) -> int:
    return int(np.abs(np.asarray(one, np.int64) - np.asarray(other, np.int64)).max())


def folder_of(tmp_path: Path, **classes: list[bytes]) -> Path:
    for name, contents in classes.items():
        for number, content in enumerate(contents):
            path = tmp_path / "photos" / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return tmp_path / "photos"


def source_of(path: Any, policy: str = "error", cover: int = 32) -> PhotoSource:
    bad = Bad(OnBad(policy))
    listing = find_photos(path)
    photos = look_into(listing, bad)
    y = Labels.of(photos.targets, words=listing.from_folders).targets(photos.targets, photos.names)
    return PhotoSource(photos, y, cover, make_decoder("turbo"), bad)


def shades(count: int, size: tuple[int, int] = (40, 40)) -> list[bytes]:
    return [encoded(Image.new("RGB", size, (10 * n, 100, 255 - 10 * n)), "JPEG", quality=95) for n in range(count)]


# What happens to bad samples


def test_bad_stops_at_the_first_or_counts_all_from_any_thread() -> None:
    with pytest.raises(DataError, match=r"a.jpg: is empty. .*on_bad='skip'"):
        Bad().found("a.jpg", "is empty")
    with pytest.raises(UsageError, match="did you mean 'skip'"):
        OnBad("skipp")
    bad = Bad(OnBad.SKIP)
    assert bad.summary() is None
    threads = [threading.Thread(target=lambda: [bad.found("f", "w") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bad.count == 2000 and len(bad.examples) == 5
    assert bad.summary() == "2000 bad samples were left out: " + "; ".join(["f: w"] * 5) + "; and 1995 more"


# Decoding


@pytest.mark.parametrize("cover", [1, 10, 48, 100, 224, 333])
def test_decoded_short_side_covers_and_is_less_than_twice_that(cover: int) -> None:
    draw = np.random.default_rng(cover)
    height, width = draw.integers(1, 5000, 4000), draw.integers(1, 5000, 4000)
    turbo, orientation = draw.random(4000) < 0.5, draw.integers(1, 9, 4000)
    plans = plan(height, width, orientation, turbo, cover)
    before, after = np.minimum(height, width), np.minimum(plans.height, plans.width)
    assert (after[before < cover] == before[before < cover]).all()
    assert (after[before >= cover] >= cover).all() and (after < 2 * cover)[before >= cover].all()


@pytest.mark.parametrize("size", [(375, 500), (1001, 700), (97, 61), (8, 8), (1, 1), (600, 5)])
@pytest.mark.parametrize("cover", [20, 40, 224])
def test_a_jpeg_comes_out_in_the_size_that_was_planned(size: tuple[int, int], cover: int) -> None:
    pixels = decoded(encoded(scene(*size), "JPEG"), cover)
    small = scene(*size).resize(pixels.shape[1::-1], Image.Resampling.BOX)
    assert np.abs(pixels.astype(int) - np.asarray(small)).mean() < 6


def test_real_photos_match_another_decoder(shared_data: Shared) -> None:
    contents = [file.read_bytes() for file in sorted(shared_data("photos/imagenet-sample").iterdir())]
    images = [Image.open(io.BytesIO(content)) for content in contents]
    grey = [place for place, image in enumerate(images) if image.mode == "L"]
    assert len(grey) == 3
    for place in [*range(20), *grey]:
        whole, small = decoded(contents[place]), decoded(contents[place], 150)
        other = images[place].convert("RGB")
        assert np.abs(whole.astype(int) - np.asarray(other)).mean() < 1.5
        assert min(small.shape[:2]) >= min(150, *whole.shape[:2])
        blurred = [np.asarray(image.resize((24, 24), Image.Resampling.BOX), int) for image in (Image.fromarray(small), other)]
        assert np.abs(blurred[0] - blurred[1]).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_rotation_is_applied(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "JPEG" else {}
    content = encoded(scene(), kind, exif=exif, **options)
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    pixels = decoded(content)
    assert pixels.shape == ((64, 48, 3) if orientation >= 5 else (48, 64, 3))
    assert worst(pixels, wanted) <= (2 if kind == "JPEG" else 0)
    reduced = decoded(content, 12)  # scaled and turned: the same corner stays the darkest
    assert reduced.shape[:2] == tuple(-(-side // 4) for side in pixels.shape[:2])
    assert np.abs(reduced - np.asarray(wanted.reduce(4)).astype(int)).mean() < 5


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"comment": b"x" * 300}, {"icc_profile": bytes(9000)}])
def test_the_header_of_a_jpeg_says_what_pillow_says(mode: str, options: dict[str, Any]) -> None:
    for orientation in (None, 1, 6):
        exif = Image.Exif()
        if orientation is not None:
            exif[0x0112] = orientation
        content = encoded(scene(31, 57).convert(mode), "JPEG", exif=exif, **options)
        header = read_header(io.BytesIO(content))
        assert header[:4] == (31, 57, orientation or 1, mode != "CMYK")


def test_a_jpeg_cut_off_in_its_header_is_named_as_such() -> None:
    content = encoded(scene(), "JPEG")
    for length in (12, 60, 150):
        with pytest.raises(ValueError, match="its header is broken or cut off"):
            read_header(io.BytesIO(content[:length]))


def test_damaged_exif_is_upright() -> None:
    assert exif_orientation(None) == 1
    assert exif_orientation(b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01") == 1
    assert exif_orientation(b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0") == 6
    assert exif_orientation(b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0\0\0\0\0") == 1


@pytest.mark.parametrize(
    ("mode", "kind", "most"),
    [
        ("L", "JPEG", 3),
        ("CMYK", "JPEG", 6),
        ("L", "PNG", 0),
        ("1", "PNG", 0),
        ("P", "PNG", 0),
        ("RGB", "WEBP", 12),
        ("P", "GIF", 0),
    ],
)
def test_other_colours_become_rgb(mode: str, kind: str, most: int) -> None:
    image = scene().convert(mode)
    options: dict[str, Any] = {"quality": 98} if kind in ("JPEG", "WEBP") else {}
    assert worst(decoded(encoded(image, kind, **options)), image.convert("RGB")) <= most


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    values = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    pixels = decoded(encoded(Image.fromarray(values), "PNG"))
    assert (pixels == (values >> 8)[:, :, None]).all() and pixels.max() == 255 and pixels.min() == 0
    assert len(np.unique(pixels)) == 256


def test_transparent_parts_show_white() -> None:
    clear = Image.new("RGBA", (6, 4), (200, 0, 0, 0))
    clear.paste((10, 20, 30, 255), (0, 0, 3, 4))
    pixels = decoded(encoded(clear, "PNG"))
    assert (pixels[:, :3] == (10, 20, 30)).all() and (pixels[:, 3:] == 255).all()
    palette = clear.convert("P")
    transparent = decoded(encoded(palette, "PNG", transparency=palette.getpixel((5, 0))))
    assert (transparent[:, 3:] == 255).all() and (transparent[:, :3] < 60).all()


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})):
        content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50, **options)
        assert (decoded(content) == (250, 0, 0)).all()


def test_two_threads_decode_the_same_bits(shared_data: Shared) -> None:
    source = source_of(shared_data("photos/hymenoptera/val"), cover=256)
    rows = torch.arange(16)
    alone, seen = source.read(rows), [dict[str, Any]() for _ in range(3)]
    threads = [threading.Thread(target=lambda into=into: into.update(source.read(rows))) for into in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(other[name].equal(column) for other in seen for name, column in alone.items())


def test_unknown_and_missing_decoders_are_said() -> None:
    with pytest.raises(UsageError, match="unknown decoder 'turb'; did you mean 'turbo'"):
        make_decoder("turb")
    assert re.fullmatch(r"turbo rule \d+, simplejpeg [\d.]+, pillow [\d.]+", make_decoder("auto").id)
    if not torch.cuda.is_available():
        with pytest.raises(MachineError, match="there is no CUDA device; use decoder='turbo'"):
            make_decoder("nvjpeg")


# Finding files


def test_classes_are_folders_nested_and_sorted(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, bees=shades(2), ants=shades(2))
    (folder / "bees" / "deep" / "er").mkdir(parents=True)
    (folder / "bees" / "deep" / "er" / "no-suffix").write_bytes(encoded(scene(), "PNG"))
    (folder / "bees" / "notes.txt").write_text("taken in May")
    (folder / "bees" / ".hidden.jpg").write_text("not looked at")
    (folder / "bees" / "back").symlink_to(folder / "bees", target_is_directory=True)
    listing = find_photos(folder)
    assert listing.names == ["ants/0.jpg", "ants/1.jpg", "bees/0.jpg", "bees/1.jpg", "bees/deep/er/no-suffix"]
    source = source_of(folder)
    assert source.read(torch.tensor([4, 0]))["y"].tolist() == [1, 0]


def test_a_suffix_that_lies_does_not_matter(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, a=[encoded(scene(), "PNG")], b=[encoded(scene(), "WEBP", lossless=True)])
    read = source_of(folder, cover=48).read(torch.arange(2))
    assert worst(read["pixels"].view(2, 48, 64, 3)[0].numpy(), scene()) == 0
    assert worst(read["pixels"].view(2, 48, 64, 3)[1].numpy(), scene()) == 0


def test_folders_without_classes_or_images_are_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty is empty and no folders; expected a folder for each class"):
        find_photos(tmp_path / "empty")
    (tmp_path / "empty" / "cats").mkdir()
    with pytest.raises(DataError, match=r"the class folder .*cats holds no images"):
        find_photos(tmp_path / "empty")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.jpg").write_bytes(shades(1)[0])
    with pytest.raises(DataError, match="flat holds 1 images and no folders"):
        find_photos(tmp_path / "flat")
    (tmp_path / "flat" / "cats").mkdir()
    with pytest.raises(DataError, match=r"a.jpg is in no class folder"):
        find_photos(tmp_path / "flat")
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        find_photos(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"photos.zip is neither a folder nor a list"):
        (tmp_path / "photos.zip").touch()
        find_photos(tmp_path / "photos.zip")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_lists_name_paths_and_labels(tmp_path: Path, kind: str) -> None:
    folder_of(tmp_path, x=shades(3))
    paths, labels = [f"photos/x/{n}.jpg" for n in range(3)], ["dog", "cat", "dog"]
    if kind == "csv":
        lines = [f'{label},"{path}"' for path, label in zip(paths, labels, strict=True)]
        (tmp_path / "list.csv").write_text("\n".join(["\ufefflabel,path", *lines]))
    else:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(pa.table({"path": paths, "label": labels, "more": [1, 2, 3]}), tmp_path / "list.parquet")
    listed = source_of(tmp_path / f"list.{kind}")
    paired = source_of(([tmp_path / path for path in paths], labels))
    everything = torch.arange(3)
    assert listed.read(everything)["y"].tolist() == [1, 0, 1]
    assert all(column.equal(paired.read(everything)[name]) for name, column in listed.read(everything).items())


def test_bad_lists_are_said(tmp_path: Path) -> None:
    folder_of(tmp_path, x=shades(1))
    (tmp_path / "a.csv").write_text("file,label\nphotos/x/0.jpg,1\n")
    with pytest.raises(DataError, match=r"a.csv needs the columns path and label; it has no 'path'"):
        find_photos(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("path,label\nphotos/x/0.jpg,1,2\n")
    with pytest.raises(DataError, match=r"b.csv row 1 has 3 fields, and its header 2"):
        find_photos(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("path,label\nphotos/x/0.jpg,1\nphotos/x/1.jpg,0\nphotos/x/0.jpg,\n")
    with pytest.raises(DataError, match=r"c.csv row 2: .*photos/x/1.jpg: can't be read: No such file"):
        look_into(find_photos(tmp_path / "c.csv"), Bad())
    bad = Bad(OnBad.SKIP)
    assert look_into(find_photos(tmp_path / "c.csv"), bad).names == ["photos/x/0.jpg"]
    assert bad.count == 2 and "row 3: " in bad.examples[1] and "has no label" in bad.examples[1]
    (tmp_path / "d.csv").write_text("path,label\n")
    with pytest.raises(DataError, match=r"d.csv has no rows"):
        find_photos(tmp_path / "d.csv")
    (tmp_path / "e.parquet").write_text("path,label\n")
    with pytest.raises(DataError, match=r"e.parquet is not Parquet"):
        find_photos(tmp_path / "e.parquet")
    with pytest.raises(DataError, match="2 paths and 1 labels"):
        find_photos((["a.jpg", "b.jpg"], [1]))


def test_labels_are_words_classes_or_numbers() -> None:
    assert Labels.of(["b", "a", "10"]).names == ("10", "a", "b")
    assert Labels.of(["2", "0"]).classes == 3 and Labels.of([2, 0]).names is None
    assert Labels.of(["0", "1"], words=True).names == ("0", "1")
    assert Labels.of([0.5, 2]).classes is None and Labels.of([0.5, 2]).targets([1.5], ["f"]).dtype == torch.float32
    told = Labels.of(["a"], classes=["b", "a"])
    assert told.targets(["a", "b"], ["f", "g"]).tolist() == [1, 0]
    with pytest.raises(DataError, match=r"g has label 'c', .*: b, a"):
        told.targets(["a", "c"], ["f", "g"])
    with pytest.raises(DataError, match=r"all have the same label, 'a'"):
        Labels.of(["a", "a"])
    with pytest.raises(DataError, match=r"f has label 3; expected 0 to 2 \(classes=3\)"):
        Labels.of([2, 0]).targets([3], ["f"])
    with pytest.raises(DataError, match="counted from 0; got -1"):
        Labels.of([-1, 1])
    with pytest.raises(DataError, match="g has a label that is not a number"):
        Labels.of([0, 1]).targets([0, "x"], ["f", "g"])


def test_files_of_a_remote_store_are_read_as_local_ones(tmp_path: Path) -> None:
    import fsspec

    folder = folder_of(tmp_path, a=shades(2), b=shades(1))
    store = fsspec.filesystem("memory")
    for path in folder.rglob("*.jpg"):
        store.pipe_file(f"/photos-test/{path.relative_to(folder)}", path.read_bytes())
    try:
        local, remote = source_of(folder), source_of("memory://photos-test")
        everything = torch.arange(3)
        assert all(column.equal(remote.read(everything)[name]) for name, column in local.read(everything).items())
        assert remote.fingerprint() == local.fingerprint()
        store.rm("/photos-test/a/1.jpg")
        with pytest.raises(DataError, match=r"memory:///photos-test/a/1\.jpg: can't be read"):
            remote.read(everything)
        store.pipe_file("/photos-test/loose.jpg", b"")
        with pytest.raises(DataError, match=r"loose\.jpg is in no class folder of memory://photos-test"):
            find_photos("memory://photos-test")
        with pytest.raises(DataError, match=r"memory://nowhere-test does not exist"):
            find_photos("memory://nowhere-test")
    finally:
        store.rm("/photos-test", recursive=True)


# Bad files


def _truncated() -> bytes:
    content = encoded(scene(200, 200), "JPEG", quality=90)
    return content[: len(content) * 2 // 3]


BAD_AT_ONCE = {
    "empty": (b"", r"is empty \(0 bytes\)"),
    "text": (b"hello, I am no image\n" * 9, "is text, not an image: it starts with 'hello, I am no image"),
    "other": (b"\0\1\2\3" * 20, "is not a JPEG, PNG, WebP, GIF, BMP or TIFF image: it starts with the bytes 00 01 02 03"),
    "header": (encoded(scene(), "JPEG")[:60], "begins like a JPEG, but its header is broken or cut off"),
    "webp": (encoded(scene(), "WEBP")[:-60], "begins like a WEBP, but its header is broken or cut off"),
    "png": (encoded(scene(), "PNG")[:20], "begins like a PNG, but its header is broken or cut off"),
}


@pytest.mark.parametrize("kind", BAD_AT_ONCE)
def test_what_is_no_image_is_found_by_its_header(tmp_path: Path, kind: str) -> None:
    content, why = BAD_AT_ONCE[kind]
    folder = folder_of(tmp_path, a=shades(2), b=[shades(1)[0], content])
    with pytest.raises(DataError, match=rf"b/1\.jpg: {why}"):
        source_of(folder)
    source = source_of(folder, "skip")
    assert len(source) == 3 and source.bad.count == 1 and "b/1.jpg" in (source.bad.summary() or "")
    with pytest.raises(DataError, match="none of the 1 files"):
        look_into(find_photos(([folder / "b" / "1.jpg"], ["x"])), Bad(OnBad.SKIP))


@pytest.mark.parametrize("content", [_truncated(), encoded(scene(), "PNG")[:-40]], ids=["jpeg", "png"])
def test_a_truncated_image_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    source = source_of(folder_of(tmp_path, a=shades(1), b=[content]))
    with pytest.raises(DataError, match=r"photos/b/0\.jpg: can't be decoded"):
        source.read(torch.tensor([0, 1]))


def test_a_photo_that_turns_out_bad_is_replaced_by_the_next_good_one(tmp_path: Path) -> None:
    cut = _truncated()
    good = shades(4)
    folder = folder_of(tmp_path, a=[good[0], cut, cut, good[1]], b=[good[2], cut])
    rows = torch.arange(6)

    def shown(source: PhotoSource, rows: torch.Tensor) -> list[tuple[int, int]]:
        batch = source.read(rows)
        first = batch["pixels"].index_select(0, batch["start"])  # the red of the first pixel tells the shades apart
        return list(zip(first.tolist(), batch["y"].tolist(), strict=True))

    whole = source_of(folder, "skip")
    expected = shown(whole, rows)
    reds, classes = [red for red, _ in expected], [y for _, y in expected]
    assert reds[1] == reds[2] == reds[3] and reds[5] == reds[0] and len(set(reds)) == 3
    assert classes == [0, 0, 0, 0, 1, 0]  # the last row wraps around to the first, and has its class
    assert whole.bad.count == 3 and "a/1.jpg: can't be decoded: Premature end of JPEG file" in (whole.bad.summary() or "")
    for order in ([5, 2, 1, 0, 3, 4], [1, 1, 2, 5, 5, 0]):  # in whatever order they are met, and one at a time
        other = source_of(folder, "skip")
        assert [shown(other, torch.tensor([row]))[0] for row in order] == [expected[row] for row in order]
        assert other.bad.count == 3
    stored = source_of(folder, "skip").stored()
    assert stored["y"].tolist() == classes
    assert whole.column("y").tolist() == classes


def test_a_file_that_vanishes_is_bad_and_none_left_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, a=shades(1), b=shades(1))
    source, skipping = source_of(folder), source_of(folder, "skip")
    os.remove(folder / "a" / "0.jpg")
    with pytest.raises(DataError, match=r"a/0\.jpg: can't be read: No such file"):
        source.read(torch.tensor([0]))
    assert skipping.read(torch.tensor([0]))["y"].tolist() == [1]
    os.remove(folder / "b" / "0.jpg")
    with pytest.raises(DataError, match="none of the 2 photos"):
        skipping.read(torch.tensor([1]))


def test_a_file_that_changed_since_it_was_looked_at_is_bad(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, a=shades(1), b=shades(1))
    source = source_of(folder)
    (folder / "a" / "0.jpg").write_bytes(encoded(scene(20, 30), "JPEG"))
    with pytest.raises(DataError, match="20 x 30 pixels, but its header says 40 x 40"):
        source.read(torch.tensor([0]))
    (folder / "a" / "0.jpg").write_bytes(encoded(scene(500, 30), "JPEG"))
    with pytest.raises(DataError, match=r"a/0.jpg: can't be decoded: .*buffer is too small"):
        source.read(torch.tensor([0]))


# The source


def test_rows_lie_end_to_end_in_the_order_asked_for(tmp_path: Path) -> None:
    sizes = [(40, 50), (33, 90), (64, 64), (70, 35)]
    contents = [encoded(scene(*size), "PNG") for size in sizes]
    source = source_of(folder_of(tmp_path, a=contents[:2], b=contents[2:]), cover=33)
    assert source.sizes.tolist() == [height * width * 3 for height, width in sizes]
    schema = source.schema
    assert schema["pixels"].ragged == pytest.approx(float(source.sizes.float().mean()))
    batch = source.read(torch.tensor([2, 0, 2, 1]))
    assert batch.keys() == schema.keys() and all(batch[name].dtype == column.dtype for name, column in schema.items())
    for place, row in enumerate([2, 0, 2, 1]):
        height, width = sizes[row]
        start = int(batch["start"][place])
        assert (int(batch["height"][place]), int(batch["width"][place])) == (height, width)
        image = batch["pixels"][start : start + height * width * 3].view(height, width, 3)
        assert worst(image.numpy(), scene(height, width)) == 0
    assert len(batch["pixels"]) == sum(sizes[row][0] * sizes[row][1] * 3 for row in [2, 0, 2, 1])


def test_a_callers_buffer_and_the_store_hold_the_same_bits(shared_data: Shared) -> None:
    source = source_of(shared_data("photos/hymenoptera/val"), cover=100)
    rows = torch.tensor([7, 3, 30])
    read = source.read(rows)
    into = {name: torch.zeros(3, dtype=column.dtype) for name, column in read.items() if name != "pixels"}
    into["pixels"] = torch.zeros(len(read["pixels"]) + 1000, dtype=torch.uint8)
    source.read_into(rows, into)
    assert into["pixels"][: len(read["pixels"])].equal(read["pixels"])
    assert all(into[name].equal(read[name]) for name in read if name != "pixels")
    with pytest.raises(UsageError, match="the buffer for 'pixels' holds 10 items"):
        source.read_into(rows, {**into, "pixels": torch.zeros(10, dtype=torch.uint8)})
    stored = source.stored()
    picked = source.gather(stored, rows)
    assert picked["pixels"] is stored["pixels"] and sum(c.nbytes for c in stored.values()) == source.stored_bytes
    for place in range(3):
        size = int(read["height"][place] * read["width"][place] * 3)
        one, other = int(read["start"][place]), int(picked["start"][place])
        assert read["pixels"][one : one + size].equal(stored["pixels"][other : other + size])


def test_the_fingerprint_follows_content_names_labels_and_decoding(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, a=shades(2), b=shades(2))
    first = source_of(folder).fingerprint()
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert source_of(tmp_path / "elsewhere").fingerprint() == first
    assert source_of(folder, cover=20).fingerprint() != first
    paths = [str(path) for path in sorted(folder.glob("*/*"))]
    one, other = source_of((paths, [0, 0, 1, 1])), source_of((paths, [0, 1, 0, 1]))
    assert one.fingerprint() != other.fingerprint()
    changed = bytearray((folder / "a" / "0.jpg").read_bytes())
    changed[-30] ^= 1
    (folder / "a" / "0.jpg").write_bytes(bytes(changed))
    assert source_of(folder).fingerprint() != first


def test_photos_are_selected_with_all_their_columns(tmp_path: Path) -> None:
    photos = look_into(find_photos(folder_of(tmp_path, a=shades(2), b=shades(1, (60, 20)))), Bad())
    some = photos.select(np.array([False, True, True]))
    assert isinstance(some, Photos) and some.names == ["a/1.jpg", "b/0.jpg"] and some.targets == ["a", "b"]
    assert some.width.tolist() == [40, 60] and some.height.tolist() == [40, 20] and len(some.marks) == 2
