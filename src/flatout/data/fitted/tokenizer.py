"""A Hugging Face tokenizer with the content of its file, so that it can be saved with the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, MissingExtra, did_you_mean
from flatout.data.files.damage import in_words, reading

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[EOS]", "[SEP]")
_MOST_IDS = 1 << 24


def library(name: str) -> Any:
    """The library that the tokenizer `name` needs."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("tokenizers", "text", f"tokenizer: {name}") from error
    return tokenizers


@dataclass(frozen=True)
class Tokenizer:
    """`vocabulary` is the largest id plus one; `digest` is a hash of the file; `path` is for messages."""

    path: Path
    digest: str
    vocabulary: int
    version: str = field(compare=False)
    own: Any = field(compare=False, repr=False)
    content: bytes = field(compare=False, repr=False)
    special: bool = False  # texts get the special tokens of the file, such as [CLS] and [SEP]

    @classmethod
    def parse(cls, content: bytes, place: Path, special: bool = False) -> Tokenizer:
        tokenizers = library(place.name)
        try:
            with reading(str(place), "as a tokenizer"):
                own: Any = tokenizers.Tokenizer.from_str(content.decode())
                own.no_truncation()  # the file may set truncation or padding, which would change documents
                own.no_padding()
                ids = own.get_vocab(with_added_tokens=True).values()
        except DataError as error:
            why = in_words(error.__cause__ or error)
            raise DataError(
                f"tokenizer: {place} is not a tokenizer file of Hugging Face tokenizers ({why}): "
                "give the tokenizer.json that `Tokenizer.save` writes, or leave tokenizer out for characters"
            ) from error
        if not ids:
            raise DataError(f"tokenizer: {place} has no tokens: it was saved before it was trained")
        if max(ids) >= _MOST_IDS:
            raise DataError(
                f"tokenizer: {place} has {len(ids)} tokens, and one of them is number {max(ids)}: a model needs an entry for "
                f"every number up to the largest, and {_MOST_IDS} are the most; it is damaged"
            )
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return cls(place, digest, max(ids) + 1, tokenizers.__version__, own, content, special)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.path.name, "content": self.content.decode(), **({"special": True} if self.special else {})}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Tokenizer:
        return cls.parse(written["content"].encode(), Path(written["name"]), written.get("special", False))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. The library chooses the threads (TOKENIZERS_PARALLELISM)."""
        with reading(f"tokenizer: {self.path}", "as a tokenizer of this text"):
            return [found.ids for found in self.own.encode_batch_fast(list(texts), add_special_tokens=self.special)]

    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens, such as the end of a text."""
        with reading(f"tokenizer: {self.path}", "as a tokenizer of these tokens"):
            text: str = self.own.decode(list(ids), skip_special_tokens=True)
        return text

    def end_of_text(self, asked: str | int | None) -> int | None:
        """The id of the token `asked`, a name or an id; "auto" tries the usual names."""
        if asked is None:
            return None
        if isinstance(asked, int):
            if not 0 <= asked < self.vocabulary:
                raise DataError(f"eot: {self.path.name} has the ids 0 to {self.vocabulary - 1}, got {asked}")
            return asked
        if asked == "auto":
            special = {token.content: number for number, token in self.own.get_added_tokens_decoder().items() if token.special}
            return next((special[name] for name in _ENDS if name in special), None)
        number: int | None = self.own.token_to_id(asked)
        if number is None:
            special_names = [token.content for token in self.own.get_added_tokens_decoder().values()]
            raise DataError(f"eot: {self.path.name} has no token {asked!r}; {did_you_mean(asked, special_names or ['auto'])}")
        return number

    def allows(self, vocabulary: int | None) -> int:
        """A vocabulary may be larger than the tokenizer needs, but not smaller."""
        if vocabulary is not None and vocabulary < self.vocabulary:
            has = f"{self.path.name} has ids up to {self.vocabulary - 1}"
            raise DataError(f"vocabulary is {vocabulary} and the tokenizer {has}: leave vocabulary out")
        return vocabulary or self.vocabulary
