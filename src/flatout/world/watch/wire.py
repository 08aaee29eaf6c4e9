"""The side store: a separate connection, used by one thread, reconnected when it breaks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

T = TypeVar("T")

_TIMEOUT_S = 5.0


class StoreGone(Exception):
    """The store does not answer or refuses; the message says how."""


class Wire:
    """`busy_since_s`: since when a call has not returned. A store whose process is stopped neither answers nor fails, whatever
    its timeout is, so another thread must check this."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._address = address_of(store)
        self._store: Store = PrefixStore(prefix, store.clone())  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=_TIMEOUT_S))
        self._there: set[str] = set()
        self._broken = False
        self.busy_since_s: float | None = None

    @property
    def where(self) -> str:
        return f"at {self._address[0]}:{self._address[1]}" if self._address else "of this run"

    def set(self, key: str, value: bytes) -> None:
        self._do(lambda store: store.set(key, value.decode()))

    def first(self, key: str, value: bytes) -> bytes:
        """Set the key unless it is set; returns the value that is stored afterwards."""
        return self._do(lambda store: bytes(store.compare_set(key, "", value.decode())))

    def read(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those keys that exist. Reading a missing key would wait for it."""
        return self._do(lambda store: self._read(store, keys))

    def _read(self, store: Store, keys: Sequence[str]) -> dict[str, bytes]:
        self._there.update(key for key in keys if key not in self._there and store.check([key]))
        there = [key for key in keys if key in self._there]
        if not there:
            return {}
        values = store.multi_get(there) if store.has_extended_api() else map(store.get, there)  # type: ignore[attr-defined]
        return {key: bytes(value) for key, value in zip(there, values, strict=True)}

    def _do(self, action: Callable[[Store], T]) -> T:
        self.busy_since_s = time.monotonic()
        try:
            if self._broken:
                self._connect_again()
            return action(self._store)
        except (RuntimeError, OSError) as error:
            self._broken = True
            raise StoreGone(str(error).strip().partition("\n")[0][:200] or type(error).__name__) from error
        finally:
            self.busy_since_s = None

    def _connect_again(self) -> None:
        if self._address is not None:  # a plain connection fails at once if nobody listens, and prints no warnings
            socket.create_connection(self._address, timeout=_TIMEOUT_S).close()
        self._store = self._store.clone()  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=_TIMEOUT_S))
        self._broken = False


def address_of(store: Store) -> tuple[str, int] | None:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, TCPStore) else None
