"""Chooses the tier of a source from sizes and speeds. It measures nothing, so every choice can be replayed."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.base.units import show_bytes, show_rate, show_seconds

_SHARE = 0.6  # of free memory; the rest is for weights, activations and other processes
_SHARE_OF_RUN = 0.1  # the largest share of a run for reading everything before the first step
_MANY_EPOCHS = 10  # if the length of the run is unknown


@dataclass(frozen=True)
class Surroundings:
    """Facts for the choice. None: unknown, and not held against any tier."""

    rows: int
    row_bytes: float  # when stored
    in_memory: bool  # reading a row is only a copy: no store would be faster
    device_free_bytes: float
    host_free_bytes: float
    disk_free_bytes: float  # within the cache's budget; 0 without a cache
    fills: bool = False  # rows are copied to the device when first read, not all in advance
    on_host: bool = False  # the device is the CPU: its memory is the host's
    cached: bool = False  # the cache has all rows, from an earlier run
    epochs: float | None = None
    needed_rows_s: float | None = None  # that training could use
    decode_rows_s: float | None = None  # that the source delivers
    disk_bytes_s: float | None = None
    link_bytes_s: float | None = None

    @property
    def stored_bytes(self) -> float:
        return self.rows * self.row_bytes

    @property
    def fits_in_memory(self) -> bool:
        """Then the kernel reads each row from disk once and keeps it in memory."""
        return self.stored_bytes <= _SHARE * self.host_free_bytes

    @property
    def once(self) -> bool:
        return self.epochs is not None and self.epochs <= 1


@dataclass(frozen=True)
class TierChoice:
    tier: str
    why: str
    rejected: tuple[tuple[str, str], ...]  # (tier, why not)


def choose_tier(s: Surroundings) -> TierChoice:
    """The fastest tier that nothing rules out."""
    if s.in_memory:
        against = {"resident": _too_large(s, s.device_free_bytes, "on the device")}
        chosen = "pinned" if against["resident"] else "resident"
        against["mapped"] = against["streamed"] = "its rows are in memory already"
    else:
        against = {"resident": _not_resident(s), "pinned": _not_pinned(s), "mapped": _not_mapped(s)}
        order = ("mapped", "resident", "pinned") if s.cached else ("resident", "pinned", "mapped")
        chosen = next((tier for tier in order if not against[tier]), "streamed")
    rejected = {tier: why or _less_good(tier, chosen) for tier, why in against.items() if tier != chosen}
    if chosen == "resident":
        rejected.setdefault("pinned", _less_good("pinned", chosen))
    if chosen != "streamed":
        rejected.setdefault("streamed", _less_good("streamed", chosen))
    return TierChoice(chosen, _reason(chosen, s), tuple(rejected.items()))


def _reason(tier: str, s: Surroundings) -> str:
    size = show_bytes(s.stored_bytes)
    if tier == "resident" and s.fills:
        return f"{size} of {show_bytes(s.device_free_bytes)} free: rows stay there when first read, then gathered"
    if tier == "resident":
        return f"{size} of {show_bytes(s.device_free_bytes)} free: batches are gathered on the device"
    if tier == "pinned" and s.in_memory:
        return f"{size} is too much for {show_bytes(s.device_free_bytes)} free on the device: copied ahead from host memory"
    if tier == "pinned":
        return (
            f"{size} of {show_bytes(s.host_free_bytes)} host memory: rows stay there when first read, batches are copied ahead"
        )
    if tier == "mapped" and s.cached:
        return f"all {s.rows} rows are in the cache already: {size}, memory-mapped"
    if tier == "mapped":
        return f"{size} of {show_bytes(s.disk_free_bytes)} for the cache: written there when first read, then memory-mapped"
    if s.once:
        return "every row is used once: read from the source, nothing is kept"
    return "read from the source in every epoch: no other tier has room or is faster"


def _not_resident(s: Surroundings) -> str | None:
    if large := _too_large(s, s.device_free_bytes, "on the device"):
        return large
    if s.once:
        return "every row is used once: keeping rows gains nothing"
    if s.on_host:
        return "on a CPU, rows kept in host memory are as fast, without reading everything first"
    if s.fills:
        return None
    if s.link_bytes_s is not None and s.needed_rows_s is not None and s.needed_rows_s * s.row_bytes > 0.8 * s.link_bytes_s:
        return None  # else every later epoch would wait for the link
    if s.decode_rows_s is not None and s.needed_rows_s is not None and s.epochs is not None:
        first_s, run_s = s.rows / s.decode_rows_s, s.epochs * s.rows / s.needed_rows_s
        if first_s <= _SHARE_OF_RUN * run_s:
            return None
        return f"reading everything before the first step takes {show_seconds(first_s)}; the run takes {show_seconds(run_s)}"
    if s.epochs is not None and s.epochs >= _MANY_EPOCHS:
        return None
    return "everything would be read before the first step"


def _not_pinned(s: Surroundings) -> str | None:
    if s.once:
        return "every row is used once: keeping rows gains nothing"
    return _too_large(s, s.host_free_bytes, "in host memory")


def _not_mapped(s: Surroundings) -> str | None:
    if s.cached:
        return _slow_disk(s)
    if s.once:
        return "every row is used once: writing rows gains nothing in this run"
    if s.disk_free_bytes <= 0:
        return "no room for a cache"
    if s.stored_bytes > s.disk_free_bytes:
        return f"{show_bytes(s.stored_bytes)} is too much for {show_bytes(s.disk_free_bytes)} of cache"
    return _slow_disk(s)


def _slow_disk(s: Surroundings) -> str | None:
    if s.disk_bytes_s is None or s.decode_rows_s is None or s.fits_in_memory:
        return None
    from_disk = s.disk_bytes_s / max(s.row_bytes, 1.0)
    if from_disk >= s.decode_rows_s:
        return None
    return f"the disk delivers {show_rate(from_disk, 'rows')}, the source {show_rate(s.decode_rows_s, 'rows')}"


def _too_large(s: Surroundings, free_bytes: float, where: str) -> str | None:
    if s.stored_bytes <= _SHARE * free_bytes:
        return None
    return f"{show_bytes(s.stored_bytes)} is too much for {show_bytes(free_bytes)} free {where}"


def _less_good(tier: str, chosen: str) -> str:
    return {
        "resident": f"{chosen} has all rows without reading anything first",
        "pinned": "copies every batch over the link" if chosen == "resident" else "would read every row from the source again",
        "mapped": "slower than memory, and writes to disk",
        "streamed": "reads every row from the source in every epoch",
    }[tier]
