"""Fitted data from run folders of earlier versions: part of it is in the folder, the rest in the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.data.data import Data
from flatout.data.files.places import located
from flatout.data.fitted.array_rows import ArrayHost
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.fitted import Fitted, column_from_json, host_from_json
from flatout.data.fitted.host import HostPart
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.data.fitted.token_rows import SequenceHost, TextCode, TextHost
from flatout.data.fitted.tokenizer import Tokenizer
from flatout.data.sources.texts.tokenizer import load_tokenizer
from flatout.data.sources.texts.tokens import TOKEN_SUFFIXES


def fitted_of_earlier_run(kept: Mapping[str, Any], asked: Any, folder: Path) -> Fitted:
    """`kept` is the content of data.json; `asked` is the data of the recipe, with paths relative to `folder`."""
    schema = {name: column_from_json(column) for name, column in kept["columns"].items()}
    written = asked if isinstance(asked, Mapping) else {}
    names = None if kept["labels"] is None else tuple(kept["labels"])
    reading = dict(kept["reading"])
    host: HostPart
    if kept["preparation"] is not None:
        host = host_from_json("table", kept["preparation"])
    elif reading.get("images"):
        host = PhotoHost(reading["cover"], reading["decoder"], names, kept["classes"])
    elif isinstance(asked, Data):
        return asked.fitted
    elif "text" in written:
        host, reading = _text(kept, written, folder)
    elif "sequences" in written:
        host, reading = _sequences(kept, written, folder, names)
    else:
        columns = {name: (column["dtype"], tuple(column["shape"])) for name, column in kept["columns"].items()}
        reading = {"layout": written["layout"]} if "layout" in written else {}
        host = ArrayHost(columns, reading.get("layout"), names, kept["vocabulary"])
    return Fitted(host, DevicePart.from_json(kept["prepare"]), schema, reading)


def _text(kept: Mapping[str, Any], written: Mapping[str, Any], folder: Path) -> tuple[TextHost, dict[str, Any]]:
    paths = [written["text"]] if isinstance(written["text"], str) else written["text"]
    told = written.get("encoding")
    tokens = told == "tokens" or (told is None and all(Path(path).suffix.lower() in TOKEN_SUFFIXES for path in paths))
    code = TextCode(kept["vocabulary"], kept["alphabet"], told == "bytes", _tokenizer(written, folder))
    options = {"field": "text", "eot": "auto", "dtype": None, "on_bad": "error"}
    reading = {"encoding": told, **{name: written.get(name, usual) for name, usual in options.items()}}
    return TextHost(code, kept["columns"]["x"]["shape"][0], tokens, written.get("boundaries", "none")), reading


def _sequences(
    kept: Mapping[str, Any], written: Mapping[str, Any], folder: Path, names: tuple[str, ...] | None
) -> tuple[SequenceHost, dict[str, Any]]:
    tokenizer = _tokenizer(written, folder)
    code = TextCode(kept["vocabulary"], in_bytes=tokenizer is None and kept["vocabulary"] >= 256, tokenizer=tokenizer)
    options = {"field": "text", "label": None, "tokens": None, "on_bad": "error"}
    reading = {name: written.get(name, usual) for name, usual in options.items()}
    return SequenceHost(code, kept["columns"]["x"]["shape"][0], written.get("pad", 0), names), reading


def _tokenizer(written: Mapping[str, Any], folder: Path) -> Tokenizer | None:
    return load_tokenizer(Path(located(written["tokenizer"], folder))) if "tokenizer" in written else None
