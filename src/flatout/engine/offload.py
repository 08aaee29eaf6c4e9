"""Keeps parts of a step in host memory, which saves device memory and costs time.

`ActivationOffload` moves what the backward needs to the host until then; `HostOptimizer` has the optimizer's state and a second
copy of the weights there, and the host updates them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from flatout.engine.device import sync_point
from flatout.engine.update import FusedUpdate, can_fuse

_LEAST_BYTES = 256 << 10  # smaller tensors are not worth the copy
_LEAVING = 4  # copies under way while the forward continues; each tensor is held until then
_OWN_FORM = (
    "fused",
    "foreach",
    "capturable",
    "differentiable",
)  # options of an optimizer that change how it computes, not what


@dataclass(frozen=True)
class _Parked:
    values: Tensor  # on the host
    device: torch.device
    stride: tuple[int, ...]  # compiled code expects the same one


class ActivationOffload:
    """A context for the forward. Weights are not moved: they are on the device anyway."""

    def __init__(self, model: nn.Module, device: torch.device, least_bytes: int = _LEAST_BYTES) -> None:
        self._model = model
        self._device = device
        self._least_bytes = least_bytes
        self._staying: set[int] = set()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._leaving: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        held = (*self._model.parameters(), *self._model.buffers())
        self._staying = {tensor.untyped_storage().data_ptr() for tensor in held}
        try:
            with saved_tensors_hooks(self._park, self._bring_back):
                yield
        finally:
            self._wait_until_left(0)

    def _park(self, tensor: Tensor) -> Tensor | _Parked:
        if not self._is_worth_it(tensor):
            return tensor
        tensor = tensor.detach()
        values = torch.empty_like(tensor, device="cpu", pin_memory=self._side is not None)
        if self._side is None:
            values.copy_(tensor)
        else:
            self._side.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._side):
                values.copy_(tensor, non_blocking=True)
                left = torch.cuda.Event()
                left.record()
            self._leaving.append((tensor, left))
            self._wait_until_left(_LEAVING)
        return _Parked(values, tensor.device, tensor.stride())

    def _bring_back(self, packed: Tensor | _Parked) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        self._wait_until_left(0)  # for a backward inside the forward
        values = packed.values
        tensor = torch.empty_strided(values.size(), packed.stride, dtype=values.dtype, device=packed.device)
        return tensor.copy_(values, non_blocking=self._side is not None)

    def _is_worth_it(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.device.type != self._device.type:
            return False
        if tensor.nbytes < self._least_bytes or tensor.untyped_storage().data_ptr() in self._staying:
            return False
        return all(stride or size == 1 for size, stride in zip(tensor.size(), tensor.stride(), strict=True))  # not expanded

    def _wait_until_left(self, others: int) -> None:
        """Wait until at most `others` copies are under way, so that memory can be reused. The host does not wait."""
        while len(self._leaving) > others:
            _, left = self._leaving.popleft()
            torch.cuda.current_stream(self._device).wait_event(left)


class HostOptimizer:
    """An optimizer over copies of the weights in host memory. Its groups and its state belong to the copies.

    An update copies the gradients to the host, waits for them, updates the copies and sends them back. A step whose loss or
    norm is not finite changes nothing, with any optimizer.
    """

    def __init__(self, groups: list[dict[str, Any]], build: Callable[[list[dict[str, Any]]], Optimizer]) -> None:
        """`groups` hold the model's parameters; `build` makes an optimizer from such groups."""
        self.parameters: list[nn.Parameter] = [parameter for group in groups for parameter in group["params"]]
        self._copies = [nn.Parameter(_on_host(parameter).copy_(parameter.detach())) for parameter in self.parameters]
        self._gradients = [_on_host(parameter) for parameter in self.parameters]
        copies = iter(self._copies)
        self._optimizer = build([{**group, "params": [next(copies) for _ in group["params"]]} for group in groups])
        self._fused = FusedUpdate(self._optimizer, torch.device("cpu")) if can_fuse(self._optimizer) else None
        self._versions = [parameter._version for parameter in self.parameters]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:
        return self._optimizer.state

    def state_dict(self) -> dict[str, Any]:
        """The same as for an optimizer on the device, so that a checkpoint fits both."""
        return self._optimizer.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        forms = [{name: group[name] for name in _OWN_FORM if name in group} for group in self.param_groups]
        self._optimizer.load_state_dict(saved)
        for group, form in zip(self.param_groups, forms, strict=True):
            group.update(form)
        self.attach()

    def attach(self) -> None:
        if self._fused is not None:
            self._fused.attach()

    @torch.no_grad()
    def __call__(self, watched: Tensor | None = None) -> None:
        """Nothing changes if `watched` is not finite. Waits for the device."""
        assert watched is not None
        self._bring_gradients()
        with sync_point():
            on_host = watched.detach().cpu()  # the copies of the gradients were queued before it, so they have arrived too
            if not math.isfinite(float(on_host)):
                return
            self._bring_changed_weights()
        if self._fused is not None:
            self._fused(on_host)
        else:
            self._optimizer.step()
        self._send_weights()

    def _bring_gradients(self) -> None:
        for parameter, copy, place in zip(self.parameters, self._copies, self._gradients, strict=True):
            copy.grad = None if parameter.grad is None else place.copy_(parameter.grad, non_blocking=True)

    def _bring_changed_weights(self) -> None:
        """After a checkpoint was loaded, or if a layer changes its own weights, as an embedding with max_norm does."""
        for place, (parameter, copy) in enumerate(zip(self.parameters, self._copies, strict=True)):
            if parameter._version != self._versions[place]:
                copy.copy_(parameter)

    def _send_weights(self) -> None:
        """Queued without waiting: the next update waits for gradients that are queued after these copies."""
        for place, (parameter, copy) in enumerate(zip(self.parameters, self._copies, strict=True)):
            if copy.grad is not None:
                parameter.copy_(copy, non_blocking=True)
            self._versions[place] = parameter._version


def _on_host(like: Tensor) -> Tensor:
    return torch.empty_like(like.detach(), device="cpu", pin_memory=like.is_cuda)
