"""Text through tokenizer files: the tokens are those of the library, made once, kept whole, never served stale or damaged."""

from __future__ import annotations

import gc
import gzip
import json
import lzma
import os
import random
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatout.base.errors import DataError, MissingExtra, UsageError
from flatout.data import text
from flatout.data.cache.cache import Cache
from flatout.data.files.bad import Bad, OnBad
from flatout.data.sources.texts import tokenizer, tokens
from flatout.data.sources.texts.packing import IGNORED
from flatout.data.sources.texts.tokenizer import encoded, load_tokenizer

tokenizers: Any = pytest.importorskip("tokenizers")

END = "<|endoftext|>"


def prose(seed: int, words: int = 400) -> str:
    numbers = random.Random(seed)
    known = ["the", "cat's", "sat", "on", "a", "mat", "über", "naïve", "horse", "🐎", "3141", "it's", "running", "jumped"]
    spaces = [" ", " ", " ", " ", "  ", "\n", "\n\n", ", ", ". ", "!\n", " - "]
    return "".join(numbers.choice(known) + numbers.choice(spaces) for _ in range(words))


def byte_level() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def by_pattern() -> Any:
    """Punctuation takes the line ends that follow it along, as in many newer tokenizers."""
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made


def metaspace() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    return made


def prepending() -> Any:
    """Marks the beginning of whatever it is given: no cut leaves its tokens as they were."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    normalizers = tokenizers.normalizers
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return made


def word_piece() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="<unk>"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return made


KINDS: dict[str, Callable[[], Any]] = {
    "byte_level": byte_level, "by_pattern": by_pattern, "metaspace": metaspace, "prepending": prepending,
    "word_piece": word_piece,
}  # fmt: skip


def trained(path: Path, kind: str = "byte_level", size: int = 400, special: tuple[str, ...] = (END, "<unk>")) -> Any:
    made = KINDS[kind]()
    trainer = tokenizers.trainers.WordPieceTrainer if kind == "word_piece" else tokenizers.trainers.BpeTrainer
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet() if kind in ("byte_level", "by_pattern") else []
    corpus = prose(0).split("\n") if kind == "prepending" else [prose(0)]
    made.train_from_iterator(
        corpus, trainer(vocab_size=size, special_tokens=list(special), show_progress=False, initial_alphabet=alphabet)
    )
    made.save(str(path))
    return made


def whole(library: Any, documents: list[str], end: int | None) -> list[int]:
    """What the library gives for each document, and the end of text after it."""
    found = []
    for document in documents:
        found += [*library.encode(document, add_special_tokens=False).ids, *([] if end is None else [end])]
    return found


def stream_of(data: Any) -> list[int]:
    """All tokens of data with a window of 1."""
    batch = data.train.read(torch.arange(len(data.train)))
    return [*batch["x"].flatten().tolist(), int(batch["y"][-1])]


@pytest.fixture
def at(tmp_path: Path) -> dict[str, Any]:
    return {"window": 1, "holdout": 0, "cache": tmp_path / "cache"}


def test_documents_from_every_kind_of_file_are_what_the_library_gives(tmp_path: Path, at: dict[str, Any]) -> None:
    import pyarrow

    library = trained(tmp_path / "tok.json")
    pages = [prose(number, 60) for number in range(8)]
    (tmp_path / "a.txt").write_text(pages[0])
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write(pages[1])
    with lzma.open(tmp_path / "c.txt.xz", "wt") as file:
        file.write(pages[2])
    with pyarrow.output_stream(str(tmp_path / "d.txt.zst"), compression="zstd") as stream:
        stream.write(pages[3].encode())
    lines = "\n".join([json.dumps({"text": pages[4], "id": 1}), "", json.dumps({"text": pages[5]}, ensure_ascii=False)])
    (tmp_path / "e.jsonl").write_text(lines + "\n")
    with gzip.open(tmp_path / "f.ndjson.gz", "wt") as file:
        file.write(json.dumps({"text": pages[6]}) + "\r\n" + json.dumps({"text": ""}) + "\n" + json.dumps({"text": pages[7]}))
    files = sorted(tmp_path.glob("?.*"))
    data = text(files, tokenizer=tmp_path / "tok.json", **at)
    assert stream_of(data) == whole(library, pages, library.token_to_id(END))
    assert data.vocabulary == library.get_vocab_size() and data.alphabet is None
    assert stream_of(text(files, tokenizer=tmp_path / "tok.json", eot=None, **at)) == whole(library, pages, None)
    assert stream_of(text(files, tokenizer=tmp_path / "tok.json", eot="<unk>", **at)) == whole(library, pages, 1)
    chars = text(files, **at)
    assert chars.alphabet is not None and "".join(chars.alphabet[number] for number in stream_of(chars)) == "".join(pages)
    assert bytes(stream_of(text(files, encoding="bytes", **at))) == "".join(pages).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_read_in_pieces_gives_the_tokens_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: dict[str, Any], kind: str
) -> None:
    monkeypatch.setattr(tokenizer, "_PIECE_CHARS", 2000)
    monkeypatch.setattr(tokenizer, "_CUT_CONTEXT", 100)
    monkeypatch.setattr(tokens, "_READ_BYTES", 997)  # letters of several bytes are cut in two
    library = trained(tmp_path / "tok.json", kind)
    long = prose(1, 4000)
    (tmp_path / "long.txt").write_text(long)
    pieces = list(tokenizer._pieces([[long]], load_tokenizer(tmp_path / "tok.json")))
    assert "".join(piece for piece, _ in pieces) == long and [last for _, last in pieces].count(True) == 1
    assert (len(pieces) > 4) == (kind != "prepending")
    data = text(tmp_path / "long.txt", tokenizer=tmp_path / "tok.json", **at)
    assert stream_of(data) == whole(library, [long], library.token_to_id(END))


def test_settings_of_a_models_input_do_not_cut_or_fill_documents(tmp_path: Path, at: dict[str, Any]) -> None:
    library = trained(tmp_path / "tok.json")
    expected = whole(library, [prose(2), prose(3, 20)], library.token_to_id(END))
    library.enable_truncation(16)
    library.enable_padding(length=64)
    library.post_processor = tokenizers.processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    library.save(str(tmp_path / "tok.json"))
    for number, words in ((2, 400), (3, 20)):
        (tmp_path / f"{number}.txt").write_text(prose(number, words))
    assert stream_of(text(str(tmp_path / "?.txt"), tokenizer=tmp_path / "tok.json", **at)) == expected


def kept(folder: Path) -> dict[str, int]:
    """The kept encodings, each with the number of its file on disk: made again, it is another."""
    return {path.parent.name: path.stat().st_ino for path in folder.glob("tokens/*/tokens.bin")}


def test_encoded_once_and_again_only_when_something_changed(tmp_path: Path, at: dict[str, Any]) -> None:
    trained(tmp_path / "tok.json")
    corpus = tmp_path / "a.jsonl"
    corpus.write_text(json.dumps({"text": prose(1), "body": prose(2)}))
    first = text(corpus, tokenizer=tmp_path / "tok.json", **at)
    before = kept(at["cache"])
    shutil.copy(corpus, tmp_path / "b.jsonl")  # the same content under another name
    again = text(tmp_path / "b.jsonl", tokenizer=tmp_path / "tok.json", **at)
    assert kept(at["cache"]) == before and len(before) == 1
    assert again.fingerprint() == first.fingerprint()
    text(corpus, tokenizer=tmp_path / "tok.json", field="body", **at)
    text(corpus, tokenizer=tmp_path / "tok.json", eot=None, **at)
    trained(tmp_path / "other.json", size=300)
    text(corpus, tokenizer=tmp_path / "other.json", **at)
    corpus.write_text(json.dumps({"text": prose(1) + "!", "body": prose(2)}))
    text(corpus, tokenizer=tmp_path / "tok.json", **at)
    assert len(kept(at["cache"])) == 5 and kept(at["cache"]).items() >= before.items()
    assert not list(at["cache"].glob("tokens/*.partial*"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit": lambda folder: flip(folder / "tokens.bin"),
    "cut off": lambda folder: (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-2]),
    "starts": lambda folder: flip(folder / "starts.npy"),
    "no starts": lambda folder: (folder / "starts.npy").unlink(),
    "no sidecar": lambda folder: (folder / "tokens.bin.json").unlink(),
    "half a sidecar": lambda folder: (folder / "tokens.bin.json").write_text('{"flatout_tokens": 1, "dtype": "uint16"}'),
    "nothing in it": lambda folder: [path.unlink() for path in folder.iterdir()] and None,
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_is_made_again_and_never_served(tmp_path: Path, at: dict[str, Any], what: str) -> None:
    trained(tmp_path / "tok.json")
    (tmp_path / "a.txt").write_text(prose(1))
    (tmp_path / "b.txt").write_text(prose(2))
    options = {**at, "tokenizer": tmp_path / "tok.json", "boundaries": "loss"}
    good = text(str(tmp_path / "?.txt"), **options)
    (folder,) = at["cache"].glob("tokens/*")
    DAMAGE[what](folder)
    mended = text(str(tmp_path / "?.txt"), **options)
    assert mended.fingerprint() == good.fingerprint() and stream_of(mended) == stream_of(good)
    assert [path.name for path in at["cache"].glob("tokens/*")] == [folder.name]
    inode = kept(at["cache"])
    text(str(tmp_path / "?.txt"), **options)
    assert kept(at["cache"]) == inode


def test_several_at_once_and_what_a_killed_build_left(tmp_path: Path, at: dict[str, Any]) -> None:
    library = trained(tmp_path / "tok.json")
    (tmp_path / "a.txt").write_text(prose(1, 3000))
    left = at["cache"] / "tokens" / "0123.99-1.partial"
    left.mkdir(parents=True)
    (left / "tokens.bin").write_bytes(b"half")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: text(tmp_path / "a.txt", tokenizer=tmp_path / "tok.json", **at), range(4)))
    expected = whole(library, [prose(1, 3000)], library.token_to_id(END))
    assert all(stream_of(data) == expected for data in made)
    assert len(kept(at["cache"])) == 2 and left.exists()  # young: someone may still be at it
    for path in (left / "tokens.bin", left):
        os.utime(path, (0, 0))
    (tmp_path / "a.txt").write_text(prose(2))
    text(tmp_path / "a.txt", tokenizer=tmp_path / "tok.json", **at)
    assert not left.exists()


@pytest.mark.parametrize("mapped_bytes", [1, 1 << 40])
def test_text_in_use_is_not_evicted(
    tmp_path: Path, at: dict[str, Any], mapped_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_MAP_BYTES", mapped_bytes)
    trained(tmp_path / "tok.json")
    (tmp_path / "a.txt").write_text(prose(1))
    data = text(tmp_path / "a.txt", tokenizer=tmp_path / "tok.json", **at)
    assert "all of it is in use" in str(Cache(at["cache"], 10).trim()) and len(kept(at["cache"])) == 1
    del data
    gc.collect()
    assert Cache(at["cache"], 10).trim() is None and kept(at["cache"]) == {}
    text(tmp_path / "a.txt", tokenizer=tmp_path / "tok.json", **at)  # and is made again
    assert len(kept(at["cache"])) == 1


def test_seams_between_documents_and_the_end_of_text_that_closes_them(tmp_path: Path, at: dict[str, Any]) -> None:
    library = trained(tmp_path / "tok.json")
    pages = ["the cat", f"a mat {END} on it", "horse"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": page}) for page in pages))
    data = text(tmp_path / "a.jsonl", tokenizer=tmp_path / "tok.json", boundaries="attention", **at)
    batch = data.train.read(torch.arange(len(data.train)))
    firsts, place = [], 0
    for page in pages[:-1]:
        place += len(library.encode(page).ids) + 1
        firsts.append(place)
    assert (batch["y"].flatten() == IGNORED).nonzero().flatten().tolist() == [first - 1 for first in firsts]
    # as a file of tokens, only the tokens tell: the one inside of a document closes it too
    (folder,) = at["cache"].glob("tokens/*")
    opened = text(folder / "tokens.bin", boundaries="loss", **at)
    assert (opened.train.read(torch.arange(len(opened.train)))["y"] == IGNORED).sum() == 3


def test_a_tokenizer_that_does_not_match_the_token_file(tmp_path: Path, at: dict[str, Any]) -> None:
    trained(tmp_path / "tok.json")
    small = trained(tmp_path / "small.json", size=300)
    (tmp_path / "a.txt").write_text(prose(1))
    made = text(tmp_path / "a.txt", tokenizer=tmp_path / "tok.json", **at)
    (folder,) = at["cache"].glob("tokens/*")
    opened = text(folder / "tokens.bin", tokenizer=tmp_path / "tok.json", **at)
    assert stream_of(opened) == stream_of(made) and opened.vocabulary == made.vocabulary
    for name in ("tokens.bin", "tokens.bin.json"):
        shutil.copy(folder / name, tmp_path / name)
    with pytest.raises(DataError, match=r"tokens\.bin was made with the tokenizer tok\.json .*, not with .*small\.json"):
        text(tmp_path / "tokens.bin", tokenizer=tmp_path / "small.json", **at)
    with pytest.raises(DataError, match=r"holds uint16 tokens, .*dtype is int32"):
        text(tmp_path / "tokens.bin", dtype="int32", **at)
    (tmp_path / "tokens.bin.json").write_text('{"mine": true}')  # someone else's file says nothing about it
    largest = small.get_vocab_size() - 1
    with pytest.raises(DataError, match=rf"tokens\.bin: token ids must be 0 to {largest} of the tokenizer small\.json, found"):
        text(tmp_path / "tokens.bin", tokenizer=tmp_path / "small.json", **at)
    shutil.copy(folder / "tokens.bin.json", tmp_path / "tokens.bin.json")
    with (tmp_path / "tokens.bin").open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(DataError, match=r"tokens\.bin has \d+ bytes, .*tokens\.bin\.json .*\d+ tokens"):
        text(tmp_path / "tokens.bin", **at)
    wider = text(tmp_path / "a.txt", tokenizer=tmp_path / "tok.json", vocabulary=512, **at)
    assert wider.vocabulary == 512
    with pytest.raises(DataError, match=r"vocabulary is 100 and the tokenizer .* has ids up to"):
        text(tmp_path / "a.txt", tokenizer=tmp_path / "tok.json", vocabulary=100, **at)


def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, at: dict[str, Any]) -> None:
    trained(tmp_path / "tok.json")
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "untrained.json"))
    (tmp_path / "not.json").write_text("{}")
    (tmp_path / "a.txt").write_text("the cat sat")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"a" * 5000 + b"caf\xe9")
    (tmp_path / "half.txt").write_bytes(b"abc" + "č".encode()[:1])
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(prose(1).encode())[:-20])
    (tmp_path / "plain.txt.xz").write_bytes(b"not packed at all")
    (tmp_path / "plain.txt.zst").write_bytes(b"not packed at all")
    (tmp_path / "t.bin").write_bytes(b"\0\0" * 9)
    good = json.dumps({"text": "fine"}).encode() + b"\n"
    lines = {
        "json": (b'{"text": "a\n', r"json\.jsonl line 2: not JSON"),
        "field": (b'{"body": "a"}\n', r"field\.jsonl line 2: no field 'text'; it has body: set field"),
        "type": (b'{"text": 5}\n', r"type\.jsonl line 2: field 'text' is of type int, expected text"),
        "list": (b"[1]\n", r"list\.jsonl line 2: expected a JSON object, got list"),
        "utf8": (b'{"text": "caf\xe9"}\n', r"utf8\.jsonl line 2: not UTF-8 text .byte 13 of the line."),
        "pair": (b'{"text": "\\ud83d"}\n', r"pair\.jsonl line 2: field 'text' holds half of a surrogate pair"),
    }
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("a.txt", {"tokenizer": tmp_path / "not.json"}, r"not\.json is not a tokenizer file of Hugging Face"),
        ("a.txt", {"tokenizer": tmp_path / "a.txt"}, r"a\.txt is not a tokenizer file of Hugging Face"),
        ("a.txt", {"tokenizer": tmp_path / "absent.json"}, r"absent\.json can't be read .No such file"),
        ("a.txt", {"tokenizer": tmp_path / "untrained.json"}, r"untrained\.json has no tokens"),
        ("a.txt", {"eot": "<|endoftxt|>"}, r"tok\.json has no token '<\|endoftxt\|>'; did you mean '<\|endoftext\|>'"),
        ("a.txt", {"eot": 4000}, r"ids 0 to \d+, got 4000"),
        ("a.txt", {"encoding": "bytes"}, "tokenizer and encoding='bytes'"),
        ("a.txt", {"window": 100}, "the training text has 4 tokens, and window=100 needs 101"),
        ("empty.txt", {}, r"training text is empty: there is nothing to read in .*empty\.txt"),
        ("latin.txt", {}, r"latin\.txt: not UTF-8 text .byte 5003."),
        ("half.txt", {}, r"half\.txt: not UTF-8 text .byte 3."),
        ("cut.txt.gz", {}, r"cut\.txt\.gz: can't be read to its end, .*: Compressed file ended"),
        ("plain.txt.xz", {}, r"plain\.txt\.xz: can't be read"),
        ("plain.txt.zst", {}, r"plain\.txt\.zst: can't be read"),
        ("[at].*", {}, r"t\.bin holds tokens and .*a\.txt text"),
    ]
    for name, (line, message) in lines.items():
        (tmp_path / f"{name}.jsonl").write_bytes(good + line + good)
        cases.append((f"{name}.jsonl", {}, message))
    for name, options, message in cases:
        with pytest.raises(DataError, match=message):
            text(str(tmp_path / name), **{"tokenizer": tmp_path / "tok.json", **at, **options})
    with pytest.raises(UsageError, match="on_bad is 'error' or 'skip'"):
        text(tmp_path / "a.txt", on_bad="ignore", **at)
    blocked = tmp_path / "a.txt" / "cache"
    with pytest.raises(DataError, match=r"the encoded text has no place: .* set cache to a folder with room"):
        text(tmp_path / "a.txt", **{**at, "tokenizer": tmp_path / "tok.json", "cache": blocked})


@pytest.mark.parametrize("encoding", ["tokenizer", "chars", "bytes"])
def test_bad_documents_are_left_out_whole_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: dict[str, Any], encoding: str
) -> None:
    monkeypatch.setattr(tokens, "_READ_BYTES", 64)
    trained(tmp_path / "tok.json")
    (tmp_path / "a.txt").write_text("the cat sat on a mat")
    if encoding != "bytes":  # to which nothing is foreign
        (tmp_path / "b.txt").write_bytes(b"running " * 100 + b"caf\xe9")  # found to be bad when most of it was read
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(prose(1).encode())[:-20])
    lines = [json.dumps({"text": "horse"}), *["{"] * 7, json.dumps({"text": "jumped"})]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    chosen: dict[str, Any] = {"tokenizer": {"tokenizer": tmp_path / "tok.json"}, "chars": {}, "bytes": {"encoding": "bytes"}}
    skipped = text(str(tmp_path / "[abcd].*"), on_bad="skip", **chosen[encoding], **at)
    (tmp_path / "good.jsonl").write_text("\n".join([lines[0], lines[-1]]))
    clean = text([tmp_path / "a.txt", tmp_path / "good.jsonl"], **chosen[encoding], **at)
    assert stream_of(skipped) == stream_of(clean) and clean.notes == ()
    (said,) = skipped.notes
    assert (
        said.startswith(f"{8 if encoding == 'bytes' else 9} bad samples were left out: ") and "c.txt.gz: can't be read" in said
    )
    again = text(str(tmp_path / "[abcd].*"), on_bad="skip", **chosen[encoding], **at)  # from the cache, with a tokenizer
    assert again.notes == skipped.notes


def test_what_was_left_out_is_told_again_when_it_comes_from_the_cache(tmp_path: Path) -> None:
    trained(tmp_path / "tok.json")
    (tmp_path / "d.jsonl").write_text("\n".join([json.dumps({"text": "horse"}), *["{"] * 7]))
    loaded = load_tokenizer(tmp_path / "tok.json")
    told = []
    for _ in range(2):
        bad = Bad(OnBad.SKIP)
        encoded([tmp_path / "d.jsonl"], loaded, "text", "auto", bad, tmp_path / "cache")
        told.append((bad.count, bad.examples))
    assert told[0] == told[1] and told[0][0] == 7
    with pytest.raises(DataError, match="line 2: not JSON"):
        encoded([tmp_path / "d.jsonl"], loaded, "text", "auto", Bad(), tmp_path / "cache")


def test_mapped_files_give_what_files_in_memory_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 3000)
    ids[2999] = 49_999
    for number, kind in enumerate(("uint16", "int64", "uint16")):
        np.save(tmp_path / f"{number}.npy", ids[number * 1000 : (number + 1) * 1000].astype(kind))
    ids.astype(np.uint16).tofile(tmp_path / "whole.bin")
    seen = []
    for map_bytes in (1 << 30, 1):
        monkeypatch.setattr(tokens, "_MAP_BYTES", map_bytes)
        monkeypatch.setattr(tokens, "_SCAN_TOKENS", 300)
        for paths in (tmp_path / "whole.bin", str(tmp_path / "?.npy")):
            data = text(paths, window=32, stride=7, holdout=0.2)
            assert data.vocabulary == 50_000 and data.train.stored_bytes == 2400 * 2
            rows = torch.arange(len(data.train)).flip(0)
            read, gathered = data.train.read(rows), data.train.gather(data.train.stored(), rows)
            assert torch.equal(read["x"], gathered["x"]) and torch.equal(read["y"], gathered["y"])
            assert data.validation is not None
            last = data.validation.read(torch.tensor([len(data.validation) - 1]))
            seen.append((data.fingerprint(), read["x"].tolist(), last["y"].tolist()))
        ids_bad = ids.copy()
        ids_bad[1234] = 60_000
        ids_bad.astype(np.uint16).tofile(tmp_path / "bad.bin")
        with pytest.raises(DataError, match=r"bad\.bin: token ids must be 0 to 49999, found 60000 .token 1234."):
            text(tmp_path / "bad.bin", window=32, vocabulary=50_000)
    assert all(this == seen[0] for this in seen)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "0.npy").read_bytes()[:-100])
    (tmp_path / "no.npy").write_bytes(b"no numpy file")
    with pytest.raises(DataError, match=r"cut\.npy: its header declares 1000 tokens, 950 are there"):
        text(tmp_path / "cut.npy", window=4)
    with pytest.raises(DataError, match=r"no\.npy can't be read as npy"):
        text(tmp_path / "no.npy", window=4)


def test_real_text_is_cut_into_pieces_without_a_trace(shared_data: Any, tmp_path: Path, at: dict[str, Any]) -> None:
    packed = shared_data("wikitext-2/valid.txt.gz")
    with gzip.open(packed, "rt", encoding="utf-8") as file:
        whole_text = file.read()
    made = byte_level()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, special_tokens=[END], show_progress=False)
    made.train_from_iterator(whole_text[:200_000].splitlines(keepends=True), trainer)
    made.save(str(tmp_path / "tok.json"))
    data = text(packed, tokenizer=tmp_path / "tok.json", **at)
    assert len(whole_text) > 4 * tokenizer._PIECE_CHARS
    assert stream_of(data) == whole(made, [whole_text], 0)


def test_without_the_library_the_command_that_installs_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(prose(1))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"tokenizer: gpt2\.json needs tokenizers, .* pip install 'flatout\[text\]'"):
        text(tmp_path / "a.txt", tokenizer="gpt2.json", window=4)
    assert text(tmp_path / "a.txt", window=4).alphabet is not None  # characters need none
