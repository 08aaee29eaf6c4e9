"""Text: windows that are one token apart from their targets, in every encoding, from files, globs and modules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatout.base.errors import DataError
from flatout.data import text


def test_windows_cover_the_stream_and_targets_are_one_ahead(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefghijklmnopqrstuvwxyz" * 4)
    data = text(tmp_path / "a.txt", window=8, holdout=0.25)
    assert data.validation is not None and data.alphabet == "abcdefghijklmnopqrstuvwxyz" and data.vocabulary == 26
    assert len(data.train) == (78 - 1) // 8 and len(data.validation) == (26 - 1) // 8
    batch = data.train.read(torch.tensor([1, 0]))
    assert "".join(data.alphabet[i] for i in batch["x"][0]) == "ijklmnop"
    assert "".join(data.alphabet[i] for i in batch["y"][0]) == "jklmnopq"
    assert batch["x"].dtype == torch.int64 and batch["x"].is_contiguous() and batch["y"].is_contiguous()
    assert data.train.tokens_per_row == 8 and data.shapes_x() == (8,)
    overlapping = text(tmp_path / "a.txt", window=8, holdout=0, stride=2)
    assert overlapping.validation is None and len(overlapping.train) == (104 - 9) // 2 + 1
    assert overlapping.train.read(torch.tensor([len(overlapping.train) - 1]))["y"].shape == (1, 8)


@pytest.mark.parametrize("vocabulary", [200, 50_304, 100_000])
def test_token_files_come_back_as_they_are(tmp_path: Path, vocabulary: int) -> None:
    tokens = np.random.default_rng(0).integers(0, vocabulary, 1000)
    tokens[0] = vocabulary - 1  # above 32767 for the middle one: the bits of uint16 must survive
    kind = "uint16" if vocabulary < 1 << 16 else "uint32"
    tokens.astype(kind).tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", tokens.astype(kind))
    data = text(tmp_path / "t.bin", encoding="tokens", dtype=kind, window=10, holdout=0, vocabulary=vocabulary)
    everything = data.train.read(torch.arange(len(data.train)))
    assert everything["x"].flatten().tolist() == tokens[:990].tolist()
    assert everything["y"].flatten().tolist() == tokens[1:991].tolist()
    inferred = text(tmp_path / "t.npy", encoding="tokens", window=10, holdout=0)
    assert inferred.vocabulary == vocabulary and inferred.fingerprint() == data.fingerprint()
    assert data.train.stored_bytes == 1000 * {200: 1, 50_304: 2, 100_000: 4}[vocabulary]


def test_letters_beyond_ascii_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("žluťoučký kůň 🐎 " * 9, encoding="utf-8")
    chars = text(tmp_path / "a.txt", window=4)
    assert chars.alphabet is not None and "🐎" in chars.alphabet and chars.vocabulary == len(chars.alphabet)
    raw = text(tmp_path / "a.txt", window=4, encoding="bytes", holdout=0)
    assert raw.vocabulary == 256 and raw.alphabet is None
    assert bytes(raw.train.read(torch.arange(3))["x"].flatten().tolist()) == "žluťoučký".encode()[:12]


def test_globs_are_sorted_and_validation_shares_the_alphabet(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("bb" * 10)
    (tmp_path / "a.txt").write_text("aa" * 10)
    (tmp_path / "held.md").write_text("zz" * 10)
    data = text(str(tmp_path / "*.txt"), window=4, validation=[tmp_path / "held.md"])
    assert data.alphabet == "abz" and data.validation is not None
    assert data.train.read(torch.tensor([0]))["x"].tolist() == [[0] * 4]
    assert data.validation.read(torch.tensor([0]))["x"].tolist() == [[2] * 4]


def test_modules_are_read_without_being_imported() -> None:
    sys.modules.pop("wsgiref.util", None)
    package, module = text("module:wsgiref", window=64), text("module:wsgiref.util", window=64)
    assert len(package.train) > len(module.train) > 1
    assert "wsgiref.util" not in sys.modules
    for name, message in (("nowhere.at_all", "no module 'nowhere'"), ("sys", "no module 'sys'"), ("json.nope", "'json.nope'")):
        with pytest.raises(DataError, match=message):
            text(f"module:{name}", window=4)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    short, odd, latin = tmp_path / "short.txt", tmp_path / "odd.bin", tmp_path / "latin.txt"
    short.write_text("abc")
    odd.write_bytes(b"\1\2\3")
    latin.write_bytes(b"caf\xe9" * 20)
    np.array([1, 2, 900] * 20, np.uint16).tofile(tmp_path / "t.bin")
    np.save(tmp_path / "f.npy", np.ones(30))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"paths": short, "window": 8}, "training text has 3 tokens, and window=8 needs 9"),
        ({"paths": tmp_path / "absent.txt", "window": 8}, "absent.txt matches no file"),
        ({"paths": tmp_path, "window": 8}, "is a folder: write a glob"),
        ({"paths": [], "window": 8}, "no files"),
        ({"paths": latin, "window": 8}, "not UTF-8 text .byte 3.: use encoding='bytes'"),
        ({"paths": odd, "window": 1, "encoding": "tokens"}, "3 bytes, not a whole number of uint16"),
        ({"paths": tmp_path / "t.bin", "window": 4, "encoding": "tokens", "vocabulary": 100}, "0 to 99, found 900"),
        ({"paths": tmp_path / "f.npy", "window": 4, "encoding": "tokens"}, "flat array of token ids, got float64"),
        ({"paths": short, "window": 1, "encoding": "words"}, "'chars', 'bytes' or 'tokens', got 'words'"),
        ({"paths": short, "window": 0}, "1 token or more"),
        ({"paths": short, "window": 1, "holdout": 1.0}, "from 0 to below 1"),
        ({"paths": odd, "window": 1, "encoding": "tokens", "dtype": "float16"}, "dtype of token files is one of"),
    ]
    for arguments, message in cases:
        with pytest.raises(DataError, match=message):
            text(arguments.pop("paths"), **arguments)


def test_shakespeare_has_its_known_alphabet(shared_data: Any) -> None:
    data = text(shared_data("tiny-shakespeare") / "input.txt", window=256)
    assert data.vocabulary == 65 and len(data.train) == (1_115_394 - 111_539 - 1) // 256
