"""Recipes that people and machines get wrong: mutations of good ones, the same ones for the same seed."""
# ruff: noqa: E501, for the lists

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

_LAUGHS = "&a [l, l, l, l, l, l, l, l, l]"
for _name, _inner in zip("bcdefghi", "abcdefgh", strict=True):
    _LAUGHS = f"[{_LAUGHS}, &{_name} [{', '.join([f'*{_inner}'] * 9)}]]"

# Written as they stand. YAML reads most of them as something else than a person would.
LITERALS = (
    "1e6 samples", "3e8f1c", "2024-13-45", "2024-02-30", "2024-01-01", "2001-12-14t21:59:43.10-25:00", "1:30", "190:20:30", "0o17",
    "010", "0x1F", "0b101", "1_000", "_1", "1__0", "1e5", "1e400", "-1e400", "1e-400", ".inf", "-.inf", ".nan", "1.5e308", "9" * 5000,
    "-" + "9" * 5000, "0." + "1" * 5000, "1e" + "9" * 400, "0x" + "f" * 5000, "9223372036854775808", "18446744073709551616",
    "-9223372036854775809", "1e18", "1e19", "4294967296", "1000000000", "2147483648", "0", "-1", "-0.0", "0.5", "1.0000000001", "1",
    "2", "3.7", "true", "false", "on", "off", "yes", "no", "null", "~", "", "''", "' '", "'\\0'", '"\\0"', '"\\uD800"', '"\\uDFFFx"',
    '"\\x07"', '"a\\nb"', "'../..'", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "~nobody-here/x", "~root", "file://", "s3://",
    "ftp://x", "http://", "memory://x", "module:", "module:json", "module:no.such", "a" * 300, "a/" * 3000, "x" * 100_000, "*", "**",
    "[", "]", "{", "}", "[]", "{}", "[[]]", "[{}]", "{x: }", "{1: 2}", "{null: 1}", "{true: 1}", "{[1, 2]: 3}", "{{a: b}: c}", "{? : 1}",
    "[" * 3000, "[" * 60 + "]" * 60, "[" * 3000 + "]" * 3000, "{a: " * 500 + "1" + "}" * 500, "- " * 400 + "x", "&a [*a]", "&a {b: *a}",
    "*nowhere", "&a", "<<: *a", "{<<: 1}", "{<<: [1]}", "{<<: {x: 1}}", _LAUGHS, "!!int abc", "!!int ''", "!!float abc", "!!float ''",
    "!!bool maybe", "!!null 3", "!!timestamp x", "!!binary x", "!!binary aGVsbG8=", "!!set {a, b}", "!!set [1]", "!!omap [a: 1]",
    "!!omap 3", "!!pairs [a: 1, a: 2]", "!!str 3", "!!seq {a: 1}", "!!map [1]", "!!map 3", "!!python/object/apply:os.system [ls]",
    "!!python/name:os.system", "!mine x", "!<tag:yaml.org,2002:int> q", "%", "@x", "`x`", "|", ">", "| text", "? x", ": x", "- x",
    "#", "\t", "\\", "\x07", "\x00", "\ufeff", "\u2028", "\u202e", "\u0661\u0662", "\u00bd", "\u216b", "\uff11\uff12", "\U0001f600",
    "e\u0301", "\u0130", "1\u00a0epoch", "cosine", "adamw", "mlp", "gpt", "convnet", "classify", "regress", "binary", "multilabel",
    "next_token", "digits", "auto", "x", "y", "os:system", "os:getcwd", "os.path:join", "json:JSONDecodeError", "no.such:Thing",
    "torch.nn:Identity", "torch.nn:Linear", "builtins:list", ":", "a:", ":b", "a:b:c", "..:x", ".:x", "{mlp: x}", "{mlp: 3}",
    "{mlp: {hidden: x}}", "{mlp: {hidden: [x]}}", "{mlp: {hidden: [[1]]}}", "{mlp: {hidden: -1}}", "{mlp: {hidden: 0}}",
    "{mlp: {hidden: 1e9}}", "{mlp: {hidden: 1000000000}}", "{mlp: {hidden: 1e400}}", "{mlp: {hidden: .nan}}",
    "{mlp: {hidden: [1000000, 1000000]}}", "{mlp: {activation: 3}}", "{mlp: {activation: [relu]}}", "{mlp: {dropout: 2}}",
    "{mlp: {dropout: .nan}}", "{mlp: {dropout: x}}", "{mlp: {norm: 3}}", "{mlp: {outputs: 0}}", "{mlp: {outputs: x}}",
    "{mlp: {input_shape: 3}}", "{mlp: {1: 2}}", "{mlp: {cardinalities: [1000000000]}}", "{gpt: {layers: 1000000000}}",
    "{gpt: {heads: 0}}", "{gpt: {heads: x}}", "{gpt: {width: 1e400}}", "{gpt: {window: 0}}", "{gpt: {vocabulary: 1e12}}",
    "{convnet: {channels: 3}}", "{convnet: {channels: []}}", "{convnet: {channels: [-1]}}", "{convnet: {channels: [1e9]}}",
    "{convnet: {hidden: 1e15}}", "{classify: x}", "{classify: 3}", "{classify: {label_smoothing: x}}",
    "{classify: {label_smoothing: .nan}}", "{classify: {inputs: x}}", "{regress: {error: 3}}", "{regress: {spread: 0}}",
    "{next_token: {ignore: x}}", "{cosine: 3}", "{cosine: {warmup: .inf}}", "{cosine: {warmup: 1e400}}", "{cosine: {final: x}}",
    "{cosine: {final: .nan}}", "{one_cycle: {peak_at: 0}}", "{one_cycle: {peak_at: 1}}", "{one_cycle: {peak_at: x}}",
    "{warmup_stable_decay: {decay: 0}}", "{warmup_stable_decay: {decay: .nan}}", "{adamw: 3}", "{adamw: {betas: 3}}",
    "{adamw: {betas: [x, y]}}", "{adamw: {betas: [1, 2]}}", "{adamw: {eps: x}}", "{adamw: {eps: -1}}", "{sgd: {momentum: x}}",
    "{sgd: {momentum: -1}}", "{sgd: {nesterov: 3}}", "{sgd: {nesterov: true, momentum: 0}}", "0 epochs", "-1 epochs", "1e400 epochs",
    "1e308 epochs", "1e30 epochs", ".5 epochs", "5.epochs", "1 epoch 2", "1 fortnight", "epochs", "1 kwh", "5 USD", "200 Wh", "1e400 h",
    "1_ epochs", "accuracy >= - within 1 epoch", "accuracy >= 1e999 within 1 epoch", "accuracy >= e within 1 epoch",
    "accuracy > 1 within 1 epoch", "acuracy >= 0.9 within 1 epoch", "loss <= ..5 within 1 epoch",
    "a >= 1 within " * 3000 + "1 epoch", "50 steps", "{every: 50 steps}", "{every: 1e400 steps}", "{every: .inf, outer: {rate: .nan}}",
    "{every: 5, outer: 3, delay: x}", "{every: }", "{metric: loss, patience: 3}", "{metric: {a: b}, patience: 1e400}",
    "{metric: [1], patience: true}", "{path: x, skip: 3}", "{path: 3, skip: [3]}", "{path: [x]}", "{path: x, skip: {a: 1}}",
    "[flip, {crop: 4}]", "[{crop: x}]", "[{crop: 1e9}]", "[{cutout: {size: .inf}}]", "[{mixup: x}]", "[{normalize: 3}]",
    "[{colour_jitter: {brightness: x}}]", "[3]", "[null]", "[[flip]]", "{scale: x}", "{mean: [], std: []}", "{mean: [1], std: [0]}",
    "{mean: [1, 2], std: [1]}", "{scale: .nan}", "imagenet", "balanced", "shuffle", "{precision: bf16}", "{1: 2}", "{mesh: data=0}",
    "{mesh: x}", "{mesh: 'data=1e9'}", "{device: x}", "{device: 'cuda:99999999999'}", "{micro_batch: 9e99}", "{grace: 1e400 h}",
    "{disk_budget: 1e400 GB}", "{checkpoint_every: 1e400 steps}", "{log_every: -1}", "{log_every: 1e400}", "{own: 3}", "{tier: 3}",
    "{prefetch: [1]}", "{precision: {a: b}}", "{a: {b: {c: {d: 1}}}}", "[[[[1]]]]", "[1, 2, 3]", "[x, y]", "[a, a]", "{x: x, y: y}",
)  # fmt: skip
_ODD_KEYS = ("1", "1.5", "null", "true", "? [1, 2]", "2024-01-01", "''", "_folder", "_where", "_strays", "_stored", "self", "given",
             "Data", "DATA", "lrr", "l r", "data ", "\u0430data", "settngs", "<<", ".inf", "model_config", "__class__", "0x1")  # fmt: skip
_SETTINGS = (
    "precision", "compile", "attention", "tier", "micro_batch", "reader_threads", "prefetch", "disk_budget", "cache_compression",
    "graph", "fused_optimizer", "channels_last", "loss_head", "vocabulary_padding", "residual", "activation_checkpointing",
    "activation_offload", "optimizer_offload", "allocator", "deterministic", "log_every", "evaluation_batch", "checkpoint_every",
    "failure_every", "keep_checkpoints", "nonfinite_limit", "grace", "mesh", "pipeline", "bucket_mb", "reshard", "device", "own",
    "", "1", "precisoin",
)  # fmt: skip
_KEYS = (
    "data", "model", "objective", "inputs", "batch", "lr", "budget", "optimizer", "weight_decay", "schedule", "clip", "ema",
    "exchange", "tensor_plan", "evaluate", "early_stop", "init_from", "freeze", "rates", "price_per_hour", "seed", "settings", "knobs",
    "name",
)  # fmt: skip
_DATA_KEYS = (
    "holdout", "normalize", "augment", "draw", "seed", "label", "numeric", "categorical", "drop", "target", "validation", "test",
    "split", "steps", "onehot", "min_count", "hash_buckets", "classes", "on_bad", "format", "delimiter", "header", "names",
    "skip_lines", "comment", "strip", "na", "encoding", "decimal", "text", "columns", "layout", "size", "decoder", "cover", "tokens",
    "tokenizer", "field", "vocabulary", "pad", "window", "eot", "boundaries", "dtype", "stride", "digits", "arrays", "table", "sql",
    "images", "sequences",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A recipe's bytes, and the words of the command line behind it."""

    content: bytes
    arguments: tuple[str, ...] = ()


def make_data(folder: Path) -> None:
    """A few rows of every kind of data, beside which the recipes are written."""
    from PIL import Image

    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(64, 5)).astype("float32")
    np.savez(folder / "train.npz", x=x, y=(x.sum(1) > 0).astype("int64"))
    words = ("red", "green", "blue")
    rows = [f"{a:.3f},{words[i % 3]},{i % 7},{'yes' if b > 0 else 'no'}" for i, (a, b) in enumerate(x[:, :2])]
    (folder / "table.csv").write_text("\n".join(["a,colour,count,label", *rows]) + "\n")
    (folder / "text.txt").write_text("to be or not to be, that is the question\n" * 60)
    lines = [json.dumps({"tokens": numbers.integers(0, 9, size=4 + i % 5).tolist(), "label": i % 2}) for i in range(64)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    for kind in ("ants", "bees"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(12):
            pixels = numbers.integers(0, 255, size=(20, 24, 3)).astype("uint8")
            Image.fromarray(pixels).save(folder / "photos" / kind / f"{number}.jpg")


def good_recipes() -> list[dict[str, Any]]:
    common = {"batch": 8, "lr": 1e-3, "budget": "2 epochs", "settings": {"device": "cpu"}}
    mlp = {"mlp": {"hidden": [8, 8], "dropout": 0.1}}
    return [
        {"data": {"digits": None, "holdout": 0.2}, "model": {"convnet": {"channels": [4], "hidden": 8}}, **common},
        {
            "data": {"arrays": "train.npz", "holdout": 0.25, "normalize": "auto"}, "model": mlp, "objective": "classify",
            "optimizer": {"sgd": {"momentum": 0.9, "nesterov": True}}, "schedule": {"cosine": {"warmup": 3, "final": 0.1}},
            "clip": 1.0, "ema": 0.99, "evaluate": "1 epoch", "early_stop": {"metric": "loss", "patience": 3}, "seed": 3,
            "freeze": ["body.0.*"], "rates": {"head.*": 0.5}, "price_per_hour": 2.5, "weight_decay": 0.1, "name": "mine", **common,
        },
        {"data": {"table": "table.csv", "label": "label", "holdout": 0.2, "categorical": ["colour"]}, "model": mlp, **common},
        {"data": {"table": "table.csv", "label": "count", "target": "number"}, "objective": "regress", "model": "mlp", **common},
        {
            "data": {"text": "text.txt", "encoding": "chars", "window": 16, "holdout": 0.1}, "objective": "next_token",
            "model": {"gpt": {"layers": 1, "heads": 2, "width": 8}}, **common,
        },
        {"data": {"images": "photos", "size": 16, "augment": ["flip", {"crop": 2}]}, "model": "convnet", **common},
        {"data": {"sql": "select * from 'table.csv'", "label": "label"}, "model": mlp, **common},
        {
            "data": {"arrays": {"x": "train.npz", "y": "train.npz"}}, "model": mlp, "inputs": "x", "optimizer": {"adamw": {"eps": 1e-7}},
            **common, "budget": "accuracy >= 0.9 within 2 epochs", "data.holdout": 0.2,
        },
    ]  # fmt: skip


class Mutator:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._raw: dict[str, str] = {}

    def case(self) -> Case:
        choose = self._random
        recipe = copy.deepcopy(choose.choice(good_recipes()))
        recipe.pop("data.holdout", None)
        self._raw = {}
        arguments: list[str] = []
        content = b""
        if choose.random() < 0.65:
            for _ in range(choose.choice((1, 1, 1, 2, 4))):
                choose.choice((self._value, self._value, self._value, self._key, self._drop, self._grow, self._wrap))(recipe)
            content = self._text(recipe).encode("utf-8", "surrogatepass")
            if choose.random() < 0.25:
                content = self._torn(content)
        else:
            content = self._text(recipe).encode()
        if not content or choose.random() < 0.4:
            arguments = [word for _ in range(choose.choice((1, 1, 2, 3))) for word in self._argument()]
        return Case(content, tuple(word.replace("\0", "") for word in arguments))

    # ---- of the tree ----

    def _literal(self) -> str:
        mark = f"RAW{len(self._raw)}WAR"
        self._raw[mark] = self._random.choice(LITERALS)
        return mark

    def _places(self, tree: Any) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
        for key, value in items:
            found.append((tree, key))
            found += self._places(value)
        return found

    def _value(self, recipe: dict[str, Any]) -> None:
        """One value becomes something else; or a key that was not there gets one."""
        kind = self._random.random()
        if kind < 0.3:
            recipe[self._random.choice(_KEYS)] = self._literal()
        elif kind < 0.5 and isinstance(recipe.get("data"), dict):
            recipe["data"][self._random.choice(_DATA_KEYS)] = self._literal()
        elif kind < 0.6:
            settings = recipe.get("settings")
            recipe["settings"] = {**(settings if isinstance(settings, dict) else {})}
            recipe["settings"][self._random.choice(_SETTINGS)] = self._literal()
        elif places := self._places(recipe):
            holder, key = self._random.choice(places)
            holder[key] = self._literal()

    def _key(self, recipe: dict[str, Any]) -> None:
        places = [(holder, key) for holder, key in self._places(recipe) if isinstance(holder, dict)]
        if places:
            holder, key = self._random.choice(places)
            mark = f"RAW{len(self._raw)}WAR"
            self._raw[mark] = self._random.choice(_ODD_KEYS if self._random.random() < 0.7 else LITERALS)
            holder[mark] = holder.pop(key) if self._random.random() < 0.5 else holder[key]

    def _drop(self, recipe: dict[str, Any]) -> None:
        places = self._places(recipe)
        if places:
            holder, key = self._random.choice(places)
            del holder[key]

    def _grow(self, recipe: dict[str, Any]) -> None:
        """A part of it once more, somewhere else."""
        places = self._places(recipe)
        if len(places) > 1:
            (a, b), (c, d) = self._random.sample(places, 2)
            a[b] = copy.deepcopy(c[d])

    def _wrap(self, recipe: dict[str, Any]) -> None:
        places = self._places(recipe)
        if places:
            holder, key = self._random.choice(places)
            value = holder[key]
            forms: list[Callable[[], Any]] = [lambda: [value], lambda: {"x": value}, lambda: [value] * 3, lambda: str(value)]
            forms += [lambda: {str(value): None}, lambda: [[[value]]], lambda: {"mlp": value, "gpt": value}]
            holder[key] = self._random.choice(forms)()

    def _text(self, recipe: dict[str, Any]) -> str:
        flow = self._random.choice((None, True, False))
        text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=1 << 20)
        for mark, raw in self._raw.items():
            text = text.replace(mark, raw)
        return text

    # ---- of the bytes ----

    def _torn(self, content: bytes) -> bytes:
        choose, size = self._random, len(content)
        place = choose.randrange(size + 1)
        lines = content.split(b"\n")
        line = choose.choice(lines)
        forms: list[Callable[[], bytes]] = [
            lambda: content[:place],
            lambda: content[:place] + bytes([choose.randrange(256)]) + content[place:],
            lambda: content[:place] + choose.choice(LITERALS).encode("utf-8", "surrogatepass")[:500] + content[place:],
            lambda: content + b"\n" + line + b"\n",
            lambda: content + b"\n---\n" + content,
            lambda: b"\n".join(choose.sample(lines, len(lines))),
            lambda: content.replace(b"  ", b"\t"),
            lambda: content.replace(b":", b""),
            lambda: content.decode("utf-8", "replace").encode("utf-16"),
            lambda: b"\xff\xfe" + content,
            lambda: choose.randbytes(200),
            lambda: b"",
            lambda: b"- " + content,
            lambda: content.replace(b"\n", b"\r\n"),
            lambda: b"%YAML 9.9\n---\n" + content,
        ]
        return choose.choice(forms)()

    # ---- of the command line ----

    def _argument(self) -> list[str]:
        choose = self._random
        literal = choose.choice(LITERALS).encode("utf-8", "replace").decode()
        if len(literal) > 50_000:
            literal = literal[:50_000]
        kind = choose.random()
        if kind < 0.35:
            return [f"{choose.choice(_KEYS)}={literal}"]
        if kind < 0.55:
            return [f"data.{choose.choice(_DATA_KEYS)}={literal}"]
        if kind < 0.7:
            inner = choose.choice(
                ("hidden", "dropout", "mlp.hidden", "x", "warmup", "eps", "1", "", "a.b.c", "momentum", "label_smoothing")
            )
            return [f"{choose.choice(_KEYS)}.{inner}={literal}"]
        if kind < 0.85:
            return ["--set", f"{choose.choice(_SETTINGS)}={literal}"]
        forms = (
            ["--set", literal], ["--off", choose.choice(_SETTINGS)], ["--off", literal], ["--planning", literal], [literal],
            [f"{literal}=1"], [f"={literal}"], ["--devices", literal], ["--devices", literal, "--device-kind", "h100"],
            ["--devices", "8", "--device-kind", literal], ["--devices", "8", "--device-kind", "h100", "--per-node", literal],
            ["--html", literal[:2000]],
        )  # fmt: skip
        return list(choose.choice(forms))
