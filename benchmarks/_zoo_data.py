"""What stands in for the data of the scripts in benchmarks/_zoo_scripts.py: made here, in the layout that each script reads.

Nothing is downloaded. The data can be learned (patterns with noise), so losses fall as they would; accuracies mean nothing.
"""

from __future__ import annotations

import gzip
import pickle
import struct
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Made = Callable[[Path], None]


def nothing(folder: Path) -> None:
    """The script makes its own data, or its repository has it."""


def both(*makers: Made) -> Made:
    def made(folder: Path) -> None:
        for one in makers:
            one(folder)

    return made


def _patterns(count: int, classes: int, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes: a pattern for each class, shaded, with noise; and the classes."""
    of_classes = np.random.default_rng(0).random((classes, *shape), dtype=np.float32)
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(0, classes, count)
    images = np.empty((count, *shape), np.uint8)
    for first in range(0, count, 5000):
        some = labels[first : first + 5000]
        shade = drawn.random((len(some), *(1 for _ in shape)), dtype=np.float32)
        noise = drawn.random((len(some), *shape), dtype=np.float32)
        images[first : first + 5000] = 255 * (0.5 * shade * of_classes[some] + 0.5 * noise)
    return images, labels


def mnist(place: str, name: str = "MNIST", count: int = 60_000) -> Made:
    """idx files, where torchvision.datasets.MNIST(place) looks for them."""

    def made(folder: Path) -> None:
        raw = folder / place / name / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for part, size, seed in (("train", count, 1), ("t10k", count // 6, 2)):
            images, labels = _patterns(size, 10, (28, 28), seed)
            (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, size, 28, 28) + images.tobytes())
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, size) + labels.astype(np.uint8).tobytes())
            for file in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
                (raw / f"{file}.gz").write_bytes(gzip.compress(b""))  # what torchvision thinks it has fetched

    return made


def cifar(place: str, classes: int = 10, count: int = 50_000) -> Made:
    """Pickles, where torchvision.datasets.CIFAR10(place) or CIFAR100 looks for them."""

    def made(folder: Path) -> None:
        raw = folder / place / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
        raw.mkdir(parents=True, exist_ok=True)
        named = "labels" if classes == 10 else "fine_labels"
        files = {"train": count, "test": count // 5}
        if classes == 10:
            files = {**{f"data_batch_{part}": count // 5 for part in range(1, 6)}, "test_batch": count // 5}
        for seed, (file, size) in enumerate(files.items()):
            images, labels = _patterns(size, classes, (3 * 32 * 32,), seed)
            (raw / file).write_bytes(pickle.dumps({"data": images, named: labels.tolist()}))
        names = [f"class {one}" for one in range(classes)]
        meta, key = ("batches.meta", "label_names") if classes == 10 else ("meta", "fine_label_names")
        (raw / meta).write_bytes(pickle.dumps({key: names}))

    return made


def image_folder(place: str, classes: int, count: int, size: int, ending: str = "jpg") -> Made:
    """A folder for each class, as torchvision.datasets.ImageFolder reads it."""

    def made(folder: Path) -> None:
        images, labels = _patterns(count, classes, (size // 8, size // 8, 3), 1)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = folder / place / f"class{label}" / f"{number:05}.{ending}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC).save(file)

    return made


def side_by_side(place: str, count: int, size: int) -> Made:
    """Pairs in one image: to the left what is wanted, to the right its edges."""

    def made(folder: Path) -> None:
        for part, some, seed in (("train", count, 1), ("val", 20, 2), ("test", 20, 3)):
            (folder / place / part).mkdir(parents=True, exist_ok=True)
            images, _ = _patterns(some, 10, (size // 8, size // 8, 3), seed)
            for number, image in enumerate(images):
                left = Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)
                pair = Image.new("RGB", (2 * size, size))
                pair.paste(left, (0, 0))
                pair.paste(left.convert("L").point(lambda one: 255 * (one > 96)).convert("RGB"), (size, 0))
                pair.save(folder / place / part / f"{number + 1}.jpg")

    return made


def images_and_masks(images: str, masks: str, count: int, size: int, mask: str = "{}.png") -> Made:
    """Photos of shapes, and masks of where the shapes are."""

    def made(folder: Path) -> None:
        drawn = np.random.default_rng(1)
        (folder / images).mkdir(parents=True, exist_ok=True)
        (folder / masks).mkdir(parents=True, exist_ok=True)
        across, down = np.meshgrid(np.arange(size), np.arange(size))
        for number in range(count):
            x, y, radius = drawn.integers(size // 4, 3 * size // 4, 3)
            inside = (across - x) ** 2 + (down - y) ** 2 < (radius / 2) ** 2
            image = drawn.integers(0, 128, (size, size, 3)) + 127 * inside[:, :, None]
            Image.fromarray(image.astype(np.uint8)).save(folder / images / f"{number}.jpg")
            Image.fromarray(inside.astype(np.uint8)).save(folder / masks / mask.format(number))

    return made


def _words(count: int, seed: int) -> list[str]:
    drawn = np.random.default_rng(seed)
    vocabulary = [f"w{one}" for one in range(10_000)]
    ranks = np.minimum(drawn.zipf(1.3, count), len(vocabulary)) - 1
    ranks[1::2] = (ranks[::2][: len(ranks[1::2])] * 7 + 3) % len(vocabulary)  # each second word follows from the one before
    return [vocabulary[one] for one in ranks]


def words(place: str, count: int = 1_000_000) -> Made:
    """train.txt, valid.txt and test.txt, of sentences."""

    def made(folder: Path) -> None:
        (folder / place).mkdir(parents=True, exist_ok=True)
        for part, size, seed in (("train", count, 1), ("valid", count // 20, 2), ("test", count // 20, 3)):
            every = _words(size, seed)
            lines = (" ".join(every[at : at + 20]) for at in range(0, size, 20))
            (folder / place / f"{part}.txt").write_text("\n".join(lines) + "\n")

    return made


def characters(place: str, count: int = 1_000_000, vocabulary: int = 65) -> Made:
    """train.bin, val.bin and meta.pkl as nanoGPT prepares them."""

    def made(folder: Path) -> None:
        (folder / place).mkdir(parents=True, exist_ok=True)
        for part, size, seed in (("train", count, 1), ("val", count // 10, 2)):
            steps = np.random.default_rng(seed).integers(0, 4, size)
            (steps.cumsum() % vocabulary).astype(np.uint16).tofile(folder / place / f"{part}.bin")
        letters = {chr(33 + one): one for one in range(vocabulary)}
        meta = {"vocab_size": vocabulary, "stoi": letters, "itos": {at: one for one, at in letters.items()}}
        (folder / place / "meta.pkl").write_bytes(pickle.dumps(meta))

    return made


def hourly(place: str, columns: tuple[str, ...] = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")) -> Made:
    """A table of measurements every hour, with days and weeks in it, as ETTh1.csv."""

    def made(folder: Path) -> None:
        count, drawn = 17_420, np.random.default_rng(1)
        hours = np.arange(count)
        start = np.datetime64("2016-07-01T00:00:00")
        lines = [",".join(("date", *columns))]
        waves = [
            np.sin(2 * np.pi * (hours / 24 + number / 7)) + np.sin(2 * np.pi * hours / 168) for number in range(len(columns))
        ]
        values = np.stack(waves, 1) + 0.3 * drawn.standard_normal((count, len(columns)))
        for hour, row in zip(hours, values, strict=True):
            when = str(start + np.timedelta64(int(hour), "h")).replace("T", " ")
            lines.append(",".join((when, *(f"{value:.4f}" for value in row))))
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text("\n".join(lines) + "\n")

    return made


def boxes(place: str, count: int, size: int, classes: int = 20) -> Made:
    """images/N.jpg, labels/N.txt (class x y width height) and tables with both names."""

    def made(folder: Path) -> None:
        drawn = np.random.default_rng(1)
        for part in ("images", "labels"):
            (folder / place / part).mkdir(parents=True, exist_ok=True)
        rows = []
        for number in range(count):
            image, label = drawn.integers(0, 128, (size, size, 3)), int(drawn.integers(classes))
            x, y, width, height = 0.3 + 0.4 * drawn.random(2)[0], 0.3 + 0.4 * drawn.random(), 0.3, 0.2
            left, top = int((x - width / 2) * size), int((y - height / 2) * size)
            image[top : top + int(height * size), left : left + int(width * size)] += 6 * label
            Image.fromarray(image.astype(np.uint8)).save(folder / place / "images" / f"{number}.jpg")
            (folder / place / "labels" / f"{number}.txt").write_text(f"{label} {x:.4f} {y:.4f} {width} {height}\n")
            rows.append(f"{number}.jpg,{number}.txt")
        for table in ("100examples.csv", "test.csv", "train.csv"):
            (folder / place / table).write_text("img,text\n" + "\n".join(rows) + "\n")

    return made


def sounds(place: str, count: int, seconds: float = 1.0, rate: int = 16_000) -> Made:
    """A folder of wav files for each word."""

    def made(folder: Path) -> None:
        drawn, at = np.random.default_rng(1), np.arange(int(seconds * rate)) / rate
        named = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
        for number in range(count):
            word = number % len(named)
            heard = 0.5 * np.sin(2 * np.pi * (200 + 80 * word) * at) + 0.1 * drawn.standard_normal(len(at))
            file = folder / place / named[word] / f"{number:05}.wav"
            file.parent.mkdir(parents=True, exist_ok=True)
            with wave.open(str(file), "wb") as written:
                written.setparams((1, 2, rate, 0, "NONE", ""))
                written.writeframes((heard * 20_000).astype(np.int16).tobytes())

    return made


def sine_waves(folder: Path) -> None:
    """traindata.pt, as the example's own generator makes it."""
    import torch

    starts = np.random.default_rng(2).integers(-80, 80, (100, 1))
    torch.save(np.sin((np.arange(1000) + starts) / 20.0), folder / "traindata.pt")


def folders(*places: str) -> Made:
    def made(folder: Path) -> None:
        for place in places:
            (folder / place).mkdir(parents=True, exist_ok=True)

    return made


def citations(place: str, name: str = "cora", papers: int = 2708, words_known: int = 1433, classes: int = 7) -> Made:
    """cora.content (paper, words, subject) and cora.cites: papers of a subject share words and cite each other."""

    def made(folder: Path) -> None:
        drawn = np.random.default_rng(1)
        subject = drawn.integers(0, classes, papers)
        typical = drawn.random((classes, words_known)) < 0.02
        known = (typical[subject] & (drawn.random((papers, words_known)) < 0.5)) | (drawn.random((papers, words_known)) < 0.005)
        (folder / place).mkdir(parents=True, exist_ok=True)
        rows = ("\t".join((str(1000 + one), *map(str, known[one].astype(int)), f"S{subject[one]}")) for one in range(papers))
        (folder / place / f"{name}.content").write_text("\n".join(rows) + "\n")
        order = np.argsort(subject, kind="stable")
        pairs = ((1000 + order[one], 1000 + order[(one + far) % papers]) for one in range(papers) for far in (1, 3))
        (folder / place / f"{name}.cites").write_text("\n".join(f"{a}\t{b}" for a, b in pairs) + "\n")

    return made
