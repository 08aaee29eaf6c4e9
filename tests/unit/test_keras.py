"""Keras 3 models on torch: as Keras itself would train them, used in the same process, saved and read by Keras."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import flatout as fo
from flatout.base.errors import ModelError
from flatout.base.shapes import Shapes
from flatout.models.build import build
from flatout.objectives.build import build as build_objective
from flatout.objectives.probabilities import why_no_logits

NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.standard_normal((60, 5)).astype(np.float32), NUMBERS.integers(0, 3, 60)


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras", reason="Keras 3 is not installed")


def functional(keras: Any) -> Any:
    layers = keras.layers
    given = keras.Input((5,))
    return keras.Model(given, layers.Dense(3)(layers.BatchNormalization()(layers.Dense(8, "relu")(given))))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras reads its weights as NumPy 1 did
def test_it_learns_as_in_a_loop_of_torch_and_keras_reads_its_file(tmp_path: Path, keras: Any) -> None:
    model = functional(keras)
    model.compile("adam", "mse")
    other = functional(keras)
    other.set_weights(model.get_weights())
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        cross_entropy(other(torch.from_numpy(X), training=True), torch.from_numpy(Y)).backward()
        optimizer.step()
    run = fo.run(
        data=fo.data.arrays(X, Y), model=model, batch=60, lr=0.1, optimizer={"sgd": {"momentum": 0.0}},
        schedule="constant", weight_decay=0.0, budget="5 steps", runs=tmp_path, cache=None, planning="off", quiet=True,
    )  # fmt: skip
    bare: Any = run.model(bare=True)
    for ours, theirs in zip(bare.keras.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)  # statistics of batches among them
    assert model.compiled and not np.allclose(model.get_weights()[0], other.get_weights()[0]), "the user's model is not changed"
    expected = other(torch.from_numpy(X), training=False).detach()
    torch.testing.assert_close(run.model()(torch.from_numpy(X)).detach(), expected, rtol=1e-3, atol=1e-4)
    path = tmp_path / "mine.keras"
    bare.keras.save(path)
    read = keras.saving.load_model(path)
    np.testing.assert_allclose(read.predict(X, verbose=0), expected.numpy(), rtol=1e-3, atol=1e-4)


def test_dropout_is_on_in_training_alone(keras: Any) -> None:
    model = build(keras.Sequential([keras.layers.Input((5,)), keras.layers.Dropout(0.5)]), Shapes((5,), 5), 0)
    ones = torch.ones(64, 5)
    assert torch.equal(model.eval()(ones), ones)
    assert 0.3 < float((model.train()(ones) == 0).float().mean()) < 0.7
    assert torch.equal(copy.deepcopy(model).eval()(ones), ones)


def test_another_backend_is_refused(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer:
        """As Keras makes it on another backend: no module of torch."""

        __module__ = "keras.src.layers.layer"

    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    for model in (Layer(), lambda: Layer()):
        with pytest.raises(ModelError, match="KERAS_BACKEND=torch") as error:
            build(model, Shapes((5,), 3), 0)  # type: ignore[arg-type]
        assert "jax" in str(error.value)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras reads its weights as NumPy 1 did
@pytest.mark.parametrize("objective, end", [("classify", "softmax"), ("multilabel", "sigmoid")])
def test_its_softmax_or_sigmoid_is_noticed(objective: str, end: str, keras: Any) -> None:
    for activation in (end, None):
        model = build(keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation)]), Shapes((5,), 3), 0)
        why = why_no_logits(build_objective(objective), model(torch.from_numpy(X)))
        assert why is None if activation is None else f"ends in a {end}" in str(why)
