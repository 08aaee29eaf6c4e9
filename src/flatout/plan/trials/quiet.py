"""Turns dropout off without changing the model, so that two arms can be compared number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_DROPOUTS: frozenset[Callable[..., Any]] = frozenset(
    {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}
)
_DROPOUT_OF_PRODUCTS = 4  # its position in the arguments of scaled_dot_product_attention
_DROPOUT_OF_ATTENTION = 10  # its position in the arguments of multi_head_attention_forward
_DROPOUT_OF_RECURRENT = 5
_RECURRENT: frozenset[Callable[..., Any]] = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})


class NoDropout(TorchFunctionMode):
    """Works in eager code and in code compiled inside it. Other random numbers of a model are not affected."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else named["input"]
        if func is F.scaled_dot_product_attention:
            given_by_place = len(args) > _DROPOUT_OF_PRODUCTS
            args = _replaced(args, _DROPOUT_OF_PRODUCTS) if given_by_place else args
            named |= {} if given_by_place else {"dropout_p": 0.0}
        elif func is F.multi_head_attention_forward:
            args = _replaced(args, _DROPOUT_OF_ATTENTION)
        elif func in _RECURRENT and len(args) > _DROPOUT_OF_RECURRENT:
            args = _replaced(args, _DROPOUT_OF_RECURRENT)
        return func(*args, **named)


def _replaced(args: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*args[:place], 0.0, *args[place + 1 :])
