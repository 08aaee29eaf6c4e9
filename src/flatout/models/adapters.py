"""LoRA by PEFT: small trained matrices next to the linear layers of a frozen model of transformers."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from flatout.base.errors import ModelError, did_you_mean
from flatout.models.libraries.wanted import first_line, load_library
from flatout.models.model_spec import Lora
from flatout.models.parts import head_modules

ADAPTER = "adapter"  # the folder in a run


def with_lora(model: nn.Module, lora: Lora, task: str, *, tokens: bool) -> nn.Module:
    """PEFT's own model. It trains the adapters, and the head where that is new."""
    peft = load_library("peft", "lora")
    heads = [] if task == "next_token" else list(head_modules(model))
    kinds = {True: "CAUSAL_LM", False: "SEQ_CLS" if tokens else None}
    linear = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    own = {name.rpartition(".")[2] for name, _ in model.named_modules()} - {""}
    for target in lora.targets or ():
        if target not in own and not any(name == target or name.endswith(f".{target}") for name, _ in model.named_modules()):
            raise ModelError(f"lora.targets: the model has no layer {target!r}; {did_you_mean(target, linear or own)}")
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.targets and list(lora.targets),
        modules_to_save=heads or None, task_type=kinds[task == "next_token"],
    )  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses names that transformers will rename
            adapted: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        named = ", ".join(sorted(linear)) or "none of them is linear"
        raise ModelError(f"lora: {first_line(error)} Write targets: [...]; the model's layers are {named}") from error
    return adapted


def is_adapted(model: nn.Module) -> bool:
    library: Any = sys.modules.get("peft")  # without it no model can be of it
    return library is not None and isinstance(model, library.PeftModel)


def without_adapters(model: Any) -> nn.Module:
    """The model inside, in which the adapters still work; the model itself if it has none."""
    inside: nn.Module = model.get_base_model() if is_adapted(model) else model
    return inside


def merged(model: nn.Module) -> nn.Module:
    """A copy in which the adapters are part of the weights; the model itself if it has none."""
    if not is_adapted(model):
        return model
    copied: Any = copy.deepcopy(model)
    plain: nn.Module = copied.merge_and_unload()
    return plain.eval() if not model.training else plain


def save_adapters(model: Any, folder: Path) -> None:
    """In PEFT's own format: `PeftModel.from_pretrained(base, folder)` reads it."""
    model.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
