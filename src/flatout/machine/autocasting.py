"""Autocast that never reuses code compiled for another dtype."""

from __future__ import annotations

from typing import Any

import torch

# before torch 2.13 the compile cache key says whether autocast is on, but not its dtype: code compiled for float32 or float16
# was reused for bfloat16 (pytorch/pytorch#181564)
_IS_TOLD_APART = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
_config: Any = torch.compiler.config


class _Tagged(torch.autocast):
    """Adds its dtype to the compile cache key."""

    def __enter__(self) -> Any:
        self._outside = _config.cache_key_tag
        _config.cache_key_tag = f"{self._outside} autocast to {self.fast_dtype}"
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> Any:
        _config.cache_key_tag = self._outside
        return super().__exit__(*raised)  # type: ignore[no-untyped-call]


def autocast(device_type: str, dtype: torch.dtype, enabled: bool = True) -> torch.autocast:
    return (torch.autocast if _IS_TOLD_APART or not enabled else _Tagged)(device_type, dtype, enabled=enabled)
