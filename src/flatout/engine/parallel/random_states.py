"""The random state of every process in one checkpoint, and back again."""

from __future__ import annotations

from typing import Any

import torch

from flatout.engine.surroundings import read_random_state, restore_random_state
from flatout.world.world import World


def random_of_others(world: World, device: torch.device) -> list[Any]:
    """Of each process but the first, in the order of their tokens."""
    states = world.gather({"tokens": world.token_rank, "state": _as_json(device)})
    by_tokens = {one["tokens"]: one["state"] for one in states}
    return [by_tokens[tokens] for tokens in range(1, world.token_size)]


def _as_json(device: torch.device) -> dict[str, Any]:
    """The random state as JSON, to send to another process."""
    state = read_random_state(device)
    return {
        "python": {**state["python"], "numbers": state["python"]["numbers"].tolist()},
        "numpy": {**state["numpy"], "keys": state["numpy"]["keys"].tolist()},
        **{name: state[name].tolist() for name in ("torch", "cuda") if name in state},
    }


def restore_own_random(state: dict[str, Any], device: torch.device) -> None:
    read: dict[str, Any] = {
        "python": {**state["python"], "numbers": torch.tensor(state["python"]["numbers"])},
        "numpy": {**state["numpy"], "keys": torch.tensor(state["numpy"]["keys"])},
        **{name: torch.tensor(state[name], dtype=torch.uint8) for name in ("torch", "cuda") if name in state},
    }
    restore_random_state(read, device)
