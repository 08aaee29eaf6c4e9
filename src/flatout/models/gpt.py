"""A decoder-only transformer in the shape of GPT-2: pre-norm, learned positions, tied head. 12/12/768 is GPT-2 124M."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.base.errors import ModelError
from flatout.models.head import OutputHead
from flatout.models.key_value_cache import KeyValueCache
from flatout.models.residual import in_autocast

_MOST_LAYERS = 10_000  # with a zero too many, building would take hours before memory runs out
_TWICE_ROOT_OF_2_OVER_PI = 2 * math.sqrt(2 / math.pi)

# takes the keys and values of new tokens, and returns those to attend to
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        # replaced by the setting attention=flex and by a mesh with a context axis
        self.attend = F.scaled_dot_product_attention
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.project = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, visible: Tensor | None, remember: Remember | None = None) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        causal = visible is None
        if remember is not None:
            key, value = remember(key, value)
            causal = causal and key.shape[2] == query.shape[2]  # a single new token sees all tokens before it
        mixed = self.attend(query, key, value, attn_mask=visible, dropout_p=dropout, is_causal=causal)
        projected: Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return projected


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, bias=bias)
        self.attention = SelfAttention(width, heads, dropout, bias)
        self.norm_mlp = nn.LayerNorm(width, bias=bias)
        self.expand = nn.Linear(width, 4 * width, bias=bias)
        self.project = nn.Linear(4 * width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, visible: Tensor | None, remember: Remember | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x), visible, remember))
        hidden = gelu(self.expand(self.norm_mlp(x)))
        x = x + self.dropout(self.project(hidden))
        return x


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU, with tanh. Compiled code uses the equivalent sigmoid form: the compiled tanh is slower than memory."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    exact = x.to(torch.promote_types(x.dtype, torch.float32))  # as in torch's kernel
    return (exact * torch.sigmoid(_TWICE_ROOT_OF_2_OVER_PI * (exact + 0.044715 * exact**3))).to(x.dtype)


class GPT(nn.Module):
    def __init__(
        self,
        vocabulary: int,
        window: int,
        layers: int,
        heads: int,
        width: int,
        dropout: float,
        tied: bool,
        bias: bool,
    ) -> None:
        super().__init__()
        if not 1 <= layers <= _MOST_LAYERS or heads < 1:
            raise ModelError(f"gpt: layers must be 1 to {_MOST_LAYERS:,} and heads 1 or more, got {layers} and {heads}")
        if width % heads:
            raise ModelError(f"gpt: width must be a multiple of heads, got width {width} and heads {heads}")
        self.window = window
        self.locate = from_start  # replaced in a process that has only part of each sequence
        self.narrow_residual = False  # changed by the setting residual=autocast
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, dropout, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.head = OutputHead(width, vocabulary)
        self._initialise(layers)
        if tied:
            self.head.weight = self.tokens.weight

    def _initialise(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("project.weight"):  # each block adds twice: keeps the variance near 1 at any depth
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor, documents: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """`documents` [rows, length] numbers the texts packed into a row: a token attends only to its own text."""
        logits: Tensor = self.head(self.hidden(x, documents, positions))
        return logits

    def hidden(self, x: Tensor, documents: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """The input of the head, for losses that compute the logits in parts."""
        stream = self.embed(x, positions)
        visible = None if documents is None else own_past(documents)
        for block in self.blocks:
            stream = block(stream, visible)
        normed: Tensor = self.norm(stream)
        return normed

    def new_cache(self, rows: int, slots: int) -> KeyValueCache:
        """For texts of up to `slots` tokens, at most the window."""
        return KeyValueCache(rows, len(self.blocks), min(slots, self.window))

    def cache_bytes_per_token(self) -> int:
        """Of one row, in float32."""
        return len(self.blocks) * 2 * self.positions.embedding_dim * 4

    def read(self, x: Tensor, lengths: Sequence[int], cache: KeyValueCache, rows: Sequence[int]) -> Tensor:
        """Reads texts from their first token into these rows of the cache; returns the logits after each text's last token.

        `x` [rows, longest] has a text at the start of each row, `lengths` tokens long. What follows a text does not matter:
        no token attends to later ones.
        """
        stream = self.embed(x)
        for layer, block in enumerate(self.blocks):
            stream = block(stream, None, partial(_stored, cache, layer, rows))
        for row, length in zip(rows, lengths, strict=True):
            cache.lengths[row] = length
        last = stream[torch.arange(len(rows), device=x.device), torch.tensor(lengths, device=x.device) - 1]
        logits: Tensor = self.head(self.norm(last))
        return logits

    def read_next(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """One more token of every row, `x` [rows]; returns the logits after it, those of `forward` but for rounding."""
        step = cache.step().to(x.device)
        stream = self.embed(x[:, None], step.positions[:, None])
        for layer, block in enumerate(self.blocks):
            stream = block(stream, step.visible, partial(cache.append, layer, step))
        cache.lengths = [length + 1 for length in cache.lengths]
        logits: Tensor = self.head(self.norm(stream[:, 0]))
        return logits

    def embed(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """The input of the first block."""
        length = x.shape[1]
        if length > self.window:
            raise ModelError(f"gpt was built for a window of {self.window} tokens but got {length}: set window: {length}")
        if positions is None and self.locate is from_start:
            places: Tensor = self.positions.weight[:length]  # cheaper than a lookup
        else:
            places = self.positions(self.locate(length, x.device) if positions is None else positions)
        stream: Tensor = self.dropout(self.tokens(x) + places)
        return in_autocast(stream) if self.narrow_residual else stream


def _stored(cache: KeyValueCache, layer: int, rows: Sequence[int], key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    cache.store(layer, rows, key, value)
    return key, value


def from_start(length: int, device: torch.device) -> Tensor:
    """Positions of the tokens if they are the whole sequence."""
    return torch.arange(length, device=device)


def own_past(documents: Tensor) -> Tensor:
    """[rows, 1, length, length]: whether a token (third axis) attends to another (last axis)."""
    length = documents.shape[1]
    past = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & past)[:, None]


def gpt(
    vocabulary: int,
    window: int,
    layers: int = 6,
    heads: int = 6,
    width: int = 384,
    dropout: float = 0.0,
    tied: bool = True,
    bias: bool = False,
) -> nn.Module:
    """Tokens [rows, length <= window] to logits [rows, length, vocabulary]."""
    return GPT(vocabulary, window, layers, heads, width, dropout, tied, bias)
