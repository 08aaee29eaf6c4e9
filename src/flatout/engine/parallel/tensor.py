"""Tensor parallelism: the weights of wide layers are split over processes that work on the same rows.

A plan says how each module is split; torch's DTensor holds the parts and moves data. Every weight stays one logical tensor, the
same as on a single process, so checkpoints don't depend on the number of processes.

| style    | weight                               | takes                  | gives                                          |
| -------- | ------------------------------------ | ---------------------- | ---------------------------------------------- |
| column   | by outputs                           | all                    | its own outputs                                |
| row      | by inputs; an embedding by tokens    | what a column gave     | all; with `sequence`, a share of the sequence  |
| gathered | by outputs                           | all                    | all                                            |
| qkv      | queries, keys, values, each by heads | all                    | queries, keys and values of its own heads      |
| sequence | on every process                     | a share of the sequence | the same                                      |
| whole    | on every process                     | all                    | all                                            |

Modules that a plan does not name are whole on every process. All processes of a tensor group get the same rows, start from the
same weights and draw the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from flatout.base.errors import UsageError, did_you_mean
from flatout.engine.parallel.split_layers import QKV, RUNS, ResidualStream
from flatout.models.gpt import GPT, SelfAttention
from flatout.models.head import OutputHead
from flatout.models.mlp import MLP

STYLES = ("column", "row", "gathered", "qkv", "sequence", "whole")

_GPT = {
    "tokens": "row",
    "positions": "whole",
    "blocks.*.norm_attention": "sequence",
    "blocks.*.attention.qkv": "qkv",
    "blocks.*.attention.project": "row",
    "blocks.*.norm_mlp": "sequence",
    "blocks.*.expand": "column",
    "blocks.*.project": "row",
    "norm": "sequence",
    "head": "gathered",
}


def split_tensors(
    model: nn.Module,
    mesh: DeviceMesh,
    plan: Mapping[str, str] | None = None,
    *,
    sequence: bool = True,
    split_logits: bool = False,
) -> ResidualStream:
    """Split in place, before the optimizer is made. `mesh` has one axis: the processes that share the model's weights.

    A `plan` has patterns of module names: {"layers.*.up": "column", "layers.*.down": "row"}. The built-in models have one.
    `sequence`: where the plan says so, norms and the residual stream are split along the sequence. `split_logits`: in training,
    the head of gpt returns a DTensor of logits, each process those of its own tokens; the loss and its backward must run inside
    torch's `loss_parallel()`. Returns the residual stream between the layers.
    """
    parts = mesh.size()
    model_with_plan, styles = planned(model, plan, parts)
    by_sequence = sequence and "sequence" in styles.values()
    # gpt adds positions to tokens outside of any module, so both must be DTensors
    stream = ResidualStream(
        mesh, Shard(1) if by_sequence else Replicate(), not by_sequence and not isinstance(model_with_plan, GPT)
    )
    _place(model, mesh, layouts_of(model_with_plan, styles))
    for name, style in styles.items():
        module = model_with_plan.get_submodule(name)
        RUNS["logits" if split_logits and isinstance(module, OutputHead) else style](module, stream)
    for attention in model_with_plan.modules():
        if isinstance(attention, SelfAttention) and isinstance(attention.qkv.weight, DTensor):
            attention.heads //= parts
    return stream


def planned(model: nn.Module, plan: Mapping[str, str] | None, parts: int) -> tuple[nn.Module, dict[str, str]]:
    """The part of the model that the plan is for, and the style of each of its modules. Splits nothing."""
    if plan is not None:
        return model, styles_of(model, plan, parts)
    model = part_with_plan(model, parts)
    return model, styles_of(model, plan_of(model), parts)


def plan_of(model: nn.Module) -> dict[str, str]:
    """The plan of a built-in model."""
    if isinstance(model, GPT):
        return dict(_GPT)
    assert isinstance(model, MLP)
    linear = [f"body.{name}" for name, layer in model.body.named_children() if isinstance(layer, nn.Linear)] + ["head"]
    norms = [f"body.{name}" for name, layer in model.body.named_children() if isinstance(layer, nn.LayerNorm)]
    plan = {f"embeddings.{number}": "whole" for number in range(len(model.embeddings))}
    if norms:  # a norm needs all outputs of the layer before it
        return plan | dict.fromkeys(linear[:-1], "gathered") | dict.fromkeys((*norms, "head"), "whole")
    paired = linear[: len(linear) // 2 * 2]
    plan |= {name: ("column", "row")[place % 2] for place, name in enumerate(paired)}
    return plan | dict.fromkeys(linear[len(paired) :], "whole")


def styles_of(model: nn.Module, plan: Mapping[str, str], parts: int) -> dict[str, str]:
    """The style of each module; raises if one can't be split over this many processes."""
    names = [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]
    found: dict[str, str] = {}
    for pattern, style in plan.items():
        if style not in STYLES:
            raise UsageError(f"tensor_plan: {pattern}: there is no style {style!r}; {did_you_mean(str(style), STYLES)}")
        matched = [name for name in names if _matches(name, pattern)]
        if not matched:
            shown = {".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names}
            raise UsageError(f"tensor_plan: no module with weights is called {pattern!r}; {did_you_mean(pattern, shown)}")
        found |= dict.fromkeys(matched, style)
    for module in model.modules():
        if isinstance(module, SelfAttention) and "qkv" in found.values() and module.heads % parts:
            raise UsageError(_does_not_divide(parts, module.heads, "heads of gpt", "heads"))
    for name, style in found.items():
        _check(name, model.get_submodule(name), style, parts)
    return found


def _check(name: str, module: nn.Module, style: str, parts: int) -> None:
    if style in ("sequence", "whole"):
        return
    kinds = (nn.Linear,) if style == "qkv" else (nn.Linear, nn.Embedding)
    if not isinstance(module, kinds) or not (type(module) in kinds or isinstance(module, OutputHead)):
        can = "a Linear" if style == "qkv" else "a Linear or an Embedding of torch's own"
        raise UsageError(f"tensor_plan: {name} is a {type(module).__name__}, and {style} is for {can}: remove it")
    if isinstance(module, nn.Embedding):
        if module.padding_idx is not None or module.max_norm is not None or module.sparse:
            raise UsageError(f"tensor_plan: {name} has a padding_idx, a max_norm or sparse gradients and can't be split: whole")
        count, what = (module.num_embeddings, "rows") if style == "row" else (module.embedding_dim, "columns")
    else:
        count, what = (module.in_features, "inputs") if style == "row" else (module.out_features, "outputs")
    if style == "gathered" or (style == "row" and isinstance(module, nn.Embedding)):
        fits = -(-count // parts) * (parts - 1) < count  # need not be divisible, but each process needs a part
    else:
        fits = count % (parts * QKV if style == "qkv" else parts) == 0
    if not fits:
        raise UsageError(_does_not_divide(parts, count, f"{what} of {name}"))


def _does_not_divide(parts: int, count: int, what: str, option: str | None = None) -> str:
    smaller = [number for number in range(2, parts) if count % number == 0]
    mesh = f"tensor={smaller[-1]}" if smaller else "a mesh without tensor"
    wider = -(-count // parts) * parts
    return f"tensor={parts} does not divide the {count} {what}: set {mesh}, or {f'{option}: {wider}' if option else f'{wider}'}"


def part_with_plan(model: nn.Module, parts: int) -> nn.Module:
    """The model that has a plan: this one, or one inside it."""
    for module in model.modules():
        if isinstance(module, GPT | MLP):
            return module
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    example = ", ".join(f"{name}: {style}" for name, style in zip(linear, ("column", "row"), strict=False))
    raise UsageError(
        f"tensor={parts}: {type(model).__name__} has no built-in tensor plan, only gpt and mlp have one: "
        f"set tensor_plan: {{{example or 'layers.*.up: column, layers.*.down: row'}}}, or use shard={parts}"
    )


def _matches(name: str, pattern: str) -> bool:
    """A star stands for one part of the name."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def layouts_of(model: nn.Module, styles: Mapping[str, str]) -> dict[nn.Parameter, Placement]:
    found: dict[nn.Parameter, tuple[Placement, str]] = {}
    for name, style in styles.items():
        module = model.get_submodule(name)
        for own, weight in module.named_parameters(recurse=False):
            layout = _layout(module, own, style)
            before, elsewhere = found.setdefault(weight, (layout, name))
            if before != layout:
                both = f"{name} and {elsewhere} share a weight"
                raise UsageError(f"tensor_plan: {both}, which {style} and {styles[elsewhere]} split in different ways")
    return {weight: layout for weight, (layout, _) in found.items()}


def _place(model: nn.Module, mesh: DeviceMesh, layouts: Mapping[nn.Parameter, Placement]) -> None:
    """A weight that two modules share is split once, and stays shared."""
    made = {weight: _split(weight, mesh, layout) for weight, layout in layouts.items()}
    for module in model.modules():
        for own, weight in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if weight in made:
                module.register_parameter(own, made[weight])


def _layout(module: nn.Module, own: str, style: str) -> Placement:
    if style in ("sequence", "whole") or (style == "row" and own == "bias"):
        return Replicate()
    return Shard(1) if (style == "row") is isinstance(module, nn.Linear) else Shard(0)


def _split(weight: nn.Parameter, mesh: DeviceMesh, layout: Placement) -> nn.Parameter:
    own = nn.Parameter(distribute_tensor(weight.detach(), mesh, [layout], src_data_rank=None), weight.requires_grad)
    if own.requires_grad:
        own.register_hook(_like_its_weight(layout))
    return own


def _like_its_weight(layout: Placement) -> Callable[[Tensor], Tensor]:
    """A norm that sees a share of the sequence has only a part of its gradient on each process."""

    def settled(gradient: Tensor) -> Tensor:
        return gradient.redistribute(placements=[layout]) if isinstance(gradient, DTensor) else gradient

    return settled
