"""A recipe for text or token files: what a token is, how many there are, and a model of suitable size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flatout.base.errors import DataError, UsageError
from flatout.base.units import show_count
from flatout.data.files.places import LocalFile, open_plain
from flatout.data.sources.texts.tokens import read_sidecar
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.kinds import Given, relative, split_by_name
from flatout.explore.drafting.sample import plain_bytes
from flatout.explore.drafting.sizes import device_kind, for_text
from flatout.explore.drafting.writing import DraftLine

_HEAD_BYTES = 2 << 20
_MOST_LETTERS, _MOST_CHARACTERS = 512, 200_000_000
_TEXT_FIELDS = ("text", "content", "document", "body")


def text_field(columns: Sequence[str]) -> str | None:
    """The field of JSON lines that has documents."""
    return next((name for name in _TEXT_FIELDS if name in columns), None)


def draft_text(found: Sequence[Given], folder: Path, field: str | None = None) -> Draft:
    training, held = split_by_name(found)
    with open_plain(LocalFile(training[0].files[0])) as file:
        head = file.read(_HEAD_BYTES)
    characters = len(head.decode("utf-8", "ignore"))
    size = sum(plain_bytes(LocalFile(file)) for given in training for file in given.files)
    if not head.strip():
        raise DataError(f"{training[0].typed}: there is no text in it")
    letters = _letters(head)
    by_letters = letters is not None and letters <= _MOST_LETTERS and size <= _MOST_CHARACTERS
    tokens = int(size * characters / len(head)) if by_letters else size
    encoding = "chars" if by_letters else "bytes"
    why = f"{letters} different ones in the first {show_count(characters)}" if by_letters else "no tokenizer needed"
    entries = [DraftLine("text", _written(training, folder), "a file, a glob, or a list of them")]
    if field not in (None, "text"):
        entries.append(DraftLine("field", field, "of each line, holds the text"))
    entries.append(DraftLine("encoding", encoding, f"{why}; or tokenizer: tokenizer.json"))
    files = sum(len(given.files) for given in training)
    name = training[0].name if files == 1 else f"{files} files"
    headline = f"{name}: text of about {show_count(tokens)} {'characters' if by_letters else 'bytes'}"
    facts = [("tokens", f"{'characters' if by_letters else 'bytes'}, {why}")]
    return _draft(headline, facts, entries, tokens, letters if by_letters and letters else 256, held, folder)


def draft_tokens(found: Sequence[Given], folder: Path) -> Draft:
    training, held = split_by_name(found)
    path = training[0].files[0]
    dtype, why = _token_type(path)
    size = sum(file.stat().st_size for given in training for file in given.files)
    tokens = size // np.dtype(dtype).itemsize
    ids = np.fromfile(path, dtype, 8 << 20, offset=128 if path.suffix == ".npy" else 0)
    vocabulary = int(ids.max()) + 1
    entries = [DraftLine("text", _written(training, folder), "a file of token ids, a glob, or a list of them")]
    if path.suffix != ".npy" and read_sidecar(path) is None:
        entries.append(DraftLine("dtype", dtype, f"{why}; uint16 is what most write"))
    headline = f"{training[0].name}: about {show_count(tokens)} tokens of {dtype}"
    facts = [("tokens", f"ids up to {vocabulary - 1} in the first {show_count(len(ids))}; {why}")]
    return _draft(headline, facts, entries, tokens, vocabulary, held, folder)


def _draft(
    headline: str,
    facts: list[tuple[str, str]],
    entries: list[DraftLine],
    tokens: int,
    vocabulary: int,
    held: Sequence[Given],
    folder: Path,
) -> Draft:
    validation = [given for given in held if "test" not in given.name.lower()] or list(held)
    share = 0.0 if held else 0.1
    if tokens * (1 - share) < 2 * 9:
        raise DataError(f"{headline}: too little to learn from")
    words = for_text(tokens, share, vocabulary, device_kind())
    entries.append(DraftLine("window", words.window, "tokens in a row: how far back the model sees"))
    if held:
        entries.append(DraftLine("validation", _written(validation, folder), "only evaluated on"))
        facts.append(("validation", ", ".join(given.name for given in validation)))
        facts += [("not used", f"{given.name}: for flatout evaluate") for given in held if given not in validation]
    else:
        entries.append(DraftLine("holdout", share, "the last share of the text is only evaluated on; or validation: other.txt"))
    return Draft(headline, tuple(facts), tuple(entries), "next_token", words.training)


def _letters(head: bytes) -> int | None:
    """The number of different characters; None if the text is not UTF-8."""
    try:
        return len(set(head[: len(head) - _cut(head)].decode()))
    except UnicodeDecodeError:
        return None


def _cut(head: bytes) -> int:
    """The number of bytes at the end that are a cut-off character."""
    for back in range(1, min(4, len(head)) + 1):
        if head[-back] & 0xC0 == 0xC0:
            return back
        if head[-back] < 0x80:
            break
    return 0


def _token_type(path: Path) -> tuple[str, str]:
    if path.suffix == ".npy":
        from flatout.data.files.array_files import read_array

        array = np.asarray(read_array(path, "x"))
        return str(array.dtype), "as its header says"
    known = read_sidecar(path)
    if known is not None:
        return known.dtype, f"as {path.name}.json says"
    size = path.stat().st_size
    pairs = np.fromfile(path, np.uint16, 1 << 20)
    if size % 4 == 0 and len(pairs) >= 64 and not pairs[1::2].any():
        return "uint32", "every other pair of bytes is 0"
    if size % 2:
        raise UsageError(f"{path} has {size} bytes, an odd number: expected token ids of 2 bytes (uint16) or 4 (uint32)")
    return "uint16", "ids of two bytes, by the look of it"


def _written(given: Sequence[Given], folder: Path) -> str | list[str]:
    paths = [relative(one.typed, folder) for one in given]
    return paths[0] if len(paths) == 1 else paths
