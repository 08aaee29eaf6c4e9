"""Twelve short trainings on real data for find_lr.py. Chosen before the search was built; every other one was kept unseen."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _data import real_data

import flatout as fo
from flatout.data.data import Data

ADULT = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race", "sex",
    "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
]  # fmt: skip


def _path(name: str) -> str:
    found = real_data(name)
    if found is None:
        raise SystemExit(f"this benchmark needs the real data sets: {name} is not below $FLATOUT_DATA")
    return str(found)


@cache
def adult() -> Data:
    return fo.data.table(_path("adult/adult.data.gz"), header=False, names=ADULT, strip=" .", na=["?"], label="income",
                         holdout=0.2)  # fmt: skip


@cache
def bank() -> Data:
    return fo.data.table(_path("bank-marketing/bank-additional-full.csv.gz"), delimiter=";", label="y", drop="duration",
                         holdout=0.2)  # fmt: skip


@cache
def california() -> Data:
    return fo.data.table(_path("california-housing/housing.csv.gz"), label="median_house_value", target="number", holdout=0.2)


@cache
def covertype() -> Data:
    """The first of every 24 rows: 24,209."""
    with lzma.open(_path("covertype/covtype.csv.xz"), "rt") as file:
        next(file)
        rows = np.loadtxt(io.StringIO("".join(line for place, line in enumerate(file) if place % 24 == 0)), delimiter=",")
    x, y = rows[:, :-1].astype(np.float32), rows[:, -1].astype(np.int64) - 1
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return fo.data.arrays({"x": x, "y": y}, holdout=0.2)


@cache
def fashion() -> Data:
    """The first 8,000 training images."""
    names = ("images-idx3", "labels-idx1")
    images, labels = (gzip.decompress(Path(_path(f"fashion-mnist/train-{name}-ubyte.gz")).read_bytes()) for name in names)
    x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)[:8000]
    y = np.frombuffer(labels, np.uint8, offset=8)[:8000].astype(np.int64)
    return fo.data.arrays({"x": x, "y": y}, holdout=0.2, layout="hw", normalize="auto")


@cache
def shakespeare() -> Data:
    return fo.data.text(_path("tiny-shakespeare/input.txt"), encoding="chars", window=32, holdout=0.02)


_MLP = {"mlp": {"hidden": [128, 64], "dropout": 0.2}}
_SGD = {"sgd": {"momentum": 0.9}}
_GPT = {"gpt": {"layers": 2, "heads": 2, "width": 48}}

CASES: dict[str, tuple[Callable[[], Data], dict[str, Any]]] = {
    "adult, mlp, adamw": (adult, {"model": _MLP, "objective": "binary", "batch": 256, "budget": "4 epochs"}),
    "adult, mlp, sgd": (adult, {"model": _MLP, "objective": "binary", "batch": 256, "budget": "4 epochs", "optimizer": _SGD}),
    "california, mlp, adamw": (california, {"model": {"mlp": {"hidden": [128, 64]}}, "objective": "regress", "batch": 128,
                                            "budget": "6 epochs"}),
    "california, mlp, sgd, clipped": (california, {"model": {"mlp": {"hidden": [128, 64]}}, "objective": "regress",
                                                   "batch": 128, "budget": "6 epochs", "optimizer": _SGD, "clip": 1.0}),
    "covertype, wide mlp with norm, adamw": (covertype, {"model": {"mlp": {"hidden": [128, 128], "norm": True}}, "batch": 256,
                                                         "budget": "8 epochs"}),
    "covertype, mlp, adamw, one cycle": (covertype, {"model": {"mlp": {"hidden": [128, 128]}}, "batch": 256,
                                                     "budget": "8 epochs", "schedule": "one_cycle"}),
    "digits, convnet, sgd": (fo.data.digits, {"model": {"convnet": {"channels": [16, 32], "hidden": 64}}, "batch": 64,
                                              "budget": "15 epochs", "optimizer": _SGD}),
    "digits, convnet, adamw": (fo.data.digits, {"model": {"convnet": {"channels": [16, 32], "hidden": 64}}, "batch": 64,
                                                "budget": "15 epochs"}),
    "fashion, mlp, adam, constant": (fashion, {"model": _MLP, "batch": 128, "budget": "5 epochs", "optimizer": "adam",
                                               "schedule": "constant"}),
    "fashion, convnet, adamw": (fashion, {"model": {"convnet": {"channels": [8, 16], "hidden": 64}}, "batch": 128,
                                          "budget": "3 epochs"}),
    "shakespeare, gpt, adamw": (shakespeare, {"model": _GPT, "objective": "next_token", "batch": 16, "clip": 1.0,
                                              "budget": "400 steps"}),
    "bank, mlp, sgd, warm-up": (bank, {"model": _MLP, "objective": "binary", "batch": 256, "budget": "3 epochs",
                                       "optimizer": _SGD, "schedule": {"linear": {"warmup": 0.1}}}),
}  # fmt: skip
"""By name: data, and the recipe without its rate. Fields by turns: worked on, kept."""


def recipe(name: str, lr: float | str, seed: int = 0) -> fo.Recipe:
    make, keys = CASES[name]
    return fo.Recipe(data=make(), lr=lr, seed=seed, evaluate="1000000 steps", name="sweep", **keys)
