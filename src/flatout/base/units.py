"""Quantities in the form people write and read: "512 MB", "2 min", 587k, 1.3 GB/s."""

from __future__ import annotations

import math
import re

from flatout.base.errors import UsageError

_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SECONDS = {
    "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_LONGEST_S = 3650 * 86400.0  # longer durations overflow in clock functions
_QUANTITY = re.compile(r"\s*((?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def split_quantity(text: str) -> tuple[float, str]:
    """ "10 min" -> (10.0, "min"). Raises UsageError if the text does not start with a number."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UsageError(f"expected a number and a unit, such as '10 min', got {text!r}")
    return float(match[1].replace("_", "")), match[2].lower()


def parse_seconds(text: str) -> float:
    amount, unit = split_quantity(text)
    if unit not in _SECONDS:
        raise UsageError(f"expected a duration such as '30 s', '10 min' or '2 h', got {text!r}")
    seconds = amount * _SECONDS[unit]
    if seconds > _LONGEST_S:
        raise UsageError(f"expected a duration of at most {_LONGEST_S / 86400 / 365:.0f} years, got {text!r}")
    return seconds


def is_duration_unit(unit: str) -> bool:
    return unit in _SECONDS


def parse_bytes(text: str) -> int:
    wrong = UsageError(f"expected a size such as '512 MB' or '2 GiB', got {text!r}")
    try:
        amount, unit = split_quantity(text)
    except UsageError:
        raise wrong from None
    if unit not in _BYTES:
        raise wrong
    size = amount * _BYTES[unit]
    if not math.isfinite(size):
        raise UsageError(f"expected a realistic size, got {text!r}")
    return int(size)


def show_count(value: float, digits: int = 3) -> str:
    """587123 -> "587k", 39.8e6 -> "39.8M", with three significant digits."""
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    for scale, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,600 shown with three digits is 1.00M, not 1000k
        if abs(value) >= scale * (1 - 0.5 * 10**-digits):
            return _significant(value / scale, digits) + suffix
    return _significant(value, digits)


def show_rate(value: float, unit: str) -> str:
    return f"{show_count(value)} {unit}/s"


def show_flops(value: float) -> str:
    """2.6e11 -> "260 GFLOP/s"."""
    text = show_count(value)
    return f"{text[:-1]} {text[-1]}FLOP/s" if text[-1:].isalpha() else f"{text} FLOP/s"


def show_share(share: float) -> str:
    """A share of a measured ceiling. Above 100% it was measured on a busy machine, so the exact value means nothing."""
    if share > 1:
        return "over 100%"
    return f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"


def show_gain(gain: float) -> str:
    """Speed-up factor: "1.20x"; for very small values, how many times slower."""
    if gain >= 0.1:
        return f"{gain:.2f}x"
    return "no progress" if gain <= 0 else f"{1 / gain:,.0f} times slower"


def show_metric(value: float) -> str:
    """Four decimals for ordinary values, otherwise four significant digits."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e7 else f"{value:.4g}"


def show_bytes(value: float) -> str:
    for scale, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{_significant(value / scale, 3)} {suffix}"
    return f"{value:.0f} B"


def show_joules(value: float) -> str:
    """0.0136 -> "13.6 mJ"."""
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m")):
        if abs(value) >= scale:
            return f"{_significant(value / scale, 3)} {prefix}J"
    return f"{_significant(value * 1e6, 3)} uJ"


def show_energy(joules: float) -> str:
    """Of a whole run: "312 Wh"."""
    hours = joules / 3600
    return f"{_significant(hours / 1e3, 3)} kWh" if hours >= 1e3 else f"{_significant(hours, 3)} Wh"


def show_seconds(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value < 1e-3:
        return f"{_significant(value * 1e6, 3)} us"
    if value < 1:
        return f"{_significant(value * 1e3, 3)} ms"
    if value < 60:
        return f"{_significant(value, 3)} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:.{max(places, 0)}f}".rstrip("0").rstrip(".") if places > 0 else f"{rounded:.0f}"


def show_value(value: object) -> str:
    """A setting's value."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
