"""Which tier serves a source best, from sizes and rates alone: nothing is measured here, so every choice can be replayed."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.base.units import show_bytes, show_rate, show_seconds

_SHARE = 0.6  # of free memory: the rest is for weights, activations, and other processes
_SHARE_OF_RUN = 0.1  # reading everything before the first step may cost this much of the run
_MANY_EPOCHS = 10  # where the length of the run is not known


@dataclass(frozen=True)
class Surroundings:
    """What the choice looks at. None: not known, and then it does not count against a tier."""

    rows: int
    row_bytes: float  # as it is stored
    in_memory: bool  # reading a row is a copy already: no store would make it quicker
    device_free_bytes: float
    host_free_bytes: float
    disk_free_bytes: float  # within the cache's budget; 0 without a cache
    fills: bool = False  # rows go to the device as they are first read, not all beforehand
    on_host: bool = False  # the device is the CPU: its memory is the host's
    cached: bool = False  # the cache has all rows, from an earlier run
    epochs: float | None = None
    needed_rows_s: float | None = None  # what the training step takes
    decode_rows_s: float | None = None  # what the source delivers
    disk_bytes_s: float | None = None
    link_bytes_s: float | None = None

    @property
    def stored_bytes(self) -> float:
        return self.rows * self.row_bytes

    @property
    def fits_in_memory(self) -> bool:
        """What is read from disk once is then served by the kernel from memory."""
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
    """The first that nothing speaks against, of those that cost least in every epoch."""
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
        return f"{size} of {show_bytes(s.device_free_bytes)} free: kept there as rows are first read, then picked out"
    if tier == "resident":
        return f"{size} of {show_bytes(s.device_free_bytes)} free: each batch is picked out where it is used"
    if tier == "pinned" and s.in_memory:
        return f"{size} is too much for {show_bytes(s.device_free_bytes)} free: copied ahead from host memory"
    if tier == "pinned":
        return f"{size} of {show_bytes(s.host_free_bytes)} host memory: kept there as rows are first read, copied ahead"
    if tier == "mapped" and s.cached:
        return f"all {s.rows} rows are in the cache already: {size}, read through memory mappings"
    if tier == "mapped":
        return f"{size} of {show_bytes(s.disk_free_bytes)} for the cache: written there as rows are first read, then mapped"
    if s.once:
        return "every row is used once: read from the source as it is needed, nothing is kept"
    return "read from the source in every epoch: nothing else holds it or would be quicker"


def _not_resident(s: Surroundings) -> str | None:
    if large := _too_large(s, s.device_free_bytes, "on the device"):
        return large
    if s.once:
        return "every row is used once: nothing is gained by keeping them"
    if s.on_host:
        return "the CPU reads host memory as it is: kept there while training, nothing is read beforehand"
    if s.fills:
        return None
    if s.link_bytes_s is not None and s.needed_rows_s is not None and s.needed_rows_s * s.row_bytes > 0.8 * s.link_bytes_s:
        return None  # later epochs would wait for the link, and reading beforehand is paid once
    if s.decode_rows_s is not None and s.needed_rows_s is not None and s.epochs is not None:
        first_s, run_s = s.rows / s.decode_rows_s, s.epochs * s.rows / s.needed_rows_s
        if first_s <= _SHARE_OF_RUN * run_s:
            return None
        return f"everything is read before the first step: {show_seconds(first_s)} for a run of {show_seconds(run_s)}"
    if s.epochs is not None and s.epochs >= _MANY_EPOCHS:
        return None
    return "everything would be read before the first step"


def _not_pinned(s: Surroundings) -> str | None:
    if s.once:
        return "every row is used once: nothing is gained by keeping them"
    return _too_large(s, s.host_free_bytes, "in host memory")


def _not_mapped(s: Surroundings) -> str | None:
    if s.cached:
        return _slow_disk(s)
    if s.once:
        return "every row is used once: writing them down gains nothing in this run"
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
    return f"the disk delivers {show_rate(from_disk, 'rows')}, the source itself {show_rate(s.decode_rows_s, 'rows')}"


def _too_large(s: Surroundings, free_bytes: float, where: str) -> str | None:
    if s.stored_bytes <= _SHARE * free_bytes:
        return None
    return f"{show_bytes(s.stored_bytes)} is too much for {show_bytes(free_bytes)} free {where}"


def _less_good(tier: str, chosen: str) -> str:
    return {
        "resident": f"{chosen} has all rows without reading anything beforehand",
        "pinned": "copies every batch over the link" if chosen == "resident" else "would read every row from the source again",
        "mapped": "slower than memory, and writes to disk",
        "streamed": "reads every row from the source in every epoch",
    }[tier]
