"""What pictures share: axes, a grid with labels, and colours for light and dark pages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

Tick = tuple[float, str]  # a place from 0 to 1, and its label

LETTER, LINE = 7.0, 17.0  # width of a letter and height of a line, in pixels
RANKS = 6  # colours from the worst scores to the best
_LIGHT = ("#cfd8e3", "#b3cdf5", "#8ab4f8", "#5590ee", "#2563eb", "#1e3a8a")
_DARK = ("#37404f", "#2d4a7c", "#2f62b5", "#4a8af0", "#8ab8ff", "#dbeafe")
PART_NAMES = ("blue", "orange", "green", "purple", "brown", "teal", "pink", "olive")
PARTS = len(PART_NAMES)  # colours of things without an order
_PARTS_LIGHT = ("#2563eb", "#c2410c", "#15803d", "#9333ea", "#b45309", "#0e7490", "#be185d", "#4d7c0f")
_PARTS_DARK = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#fbbf24", "#22d3ee", "#f472b6", "#a3e635")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600}"
    ".title,.note{paint-order:stroke;stroke:#fff;stroke-width:3px}"
    ".grid{stroke:#8883}.rung{stroke:#8886;stroke-dasharray:3 3}"
    ".line{stroke:#2563eb;fill:none;stroke-width:1.4;stroke-opacity:.7}.faded{stroke-opacity:.28}"
    ".dot{fill:#2563eb;fill-opacity:.75}"
    ".ring{fill:none;stroke:#2563eb;stroke-opacity:.6}.best{stroke:#c2410c;stroke-width:2;fill:none}.top{fill:#c2410c}"
    ".cross{stroke:#b91c1c;stroke-width:1.6}.bar{fill:#2563eb;fill-opacity:.75}.pair{stroke:#8886}.note{fill:#666}"
    ".part{fill:none;stroke-width:1.5}"
)
_STYLE_DARK = (
    "text{fill:#ddd}.line,.ring{stroke:#60a5fa}.dot,.bar{fill:#60a5fa}.best{stroke:#fb923c}"
    ".top{fill:#fb923c}.cross{stroke:#f87171}.note{fill:#aaa}.title,.note{stroke:#0d1117}"
)


def _ranks(colours: Sequence[str], more: str = "") -> str:
    return "".join(f".r{place}{{stroke:{colour}{more}}}.d{place}{{fill:{colour}}}" for place, colour in enumerate(colours))


def _parts(colours: Sequence[str]) -> str:
    return "".join(f".p{place}{{fill:{colour}}}.s{place}{{stroke:{colour}}}" for place, colour in enumerate(colours))


def _words_on_ranks(dark_from: int, dark: str, light: str) -> str:
    """Words on areas of these colours: `dark` words on the first ones."""
    return "".join(f".on{place}{{fill:{dark if place < dark_from else light};font-weight:600}}" for place in range(RANKS))


def _style(content: str) -> str:
    """The rules that the content uses: a page can have many pictures."""
    light, dark = _STYLE, _STYLE_DARK
    if re.search(r'class="[^"]*\b[rd]\d', content):
        light, dark = light + _ranks(_LIGHT, ";fill:none"), dark + _ranks(_DARK)
    if re.search(r'class="on\d', content):
        light, dark = light + _words_on_ranks(3, "#1f2328", "#fff"), dark + _words_on_ranks(3, "#fff", "#0d1117")
    if re.search(r'class="[^"]*\b[ps]\d', content):
        light, dark = light + _parts(_PARTS_LIGHT), dark + _parts(_PARTS_DARK)
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}"


@dataclass(frozen=True)
class Axis:
    """`at` gives the place of a value, from 0 to 1; values outside are drawn at the edge."""

    at: Callable[[float], float]
    ticks: Sequence[Tick]


@dataclass(frozen=True)
class Plot:
    """The rectangle of a picture in which points are drawn."""

    width: float
    height: float
    left: float = 62
    right: float = 18
    top: float = 30
    bottom: float = 46

    def x(self, place: float) -> float:
        return self.left + place * (self.width - self.left - self.right)

    def y(self, place: float) -> float:
        return self.height - self.bottom - place * (self.height - self.top - self.bottom)

    def grid(self, across: Sequence[Tick], up: Sequence[Tick], across_title: str, up_title: str) -> Iterator[str]:
        """Labels that would cover the one before are left out."""
        bottom, free = self.height - self.bottom, -math.inf
        for place, label in across:
            x, half = self.x(place), LETTER * len(label) / 2
            yield line("grid", x, self.top, x, bottom)
            start = min(max(x, half), self.width - half)
            if start - half > free:
                yield text(start, bottom + LINE, label, "middle")
                free = start + half + 4
        for place, label in up:
            yield line("grid", self.left, self.y(place), self.width - self.right, self.y(place))
            yield text(self.left - 8, self.y(place) + 4, label, "end")
        yield text((self.left + self.width - self.right) / 2, self.height - 8, across_title, "middle")
        yield text(4, self.top - 14, up_title)


def picture(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    content = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img"><title>{escape(title)}</title><style>{_style(content)}</style>{content}</svg>'
    )


def linear(low: float, high: float, most: int = 7) -> Axis:
    if not high > low:
        low, high = low - max(abs(low) * 0.01, 1e-9), high + max(abs(high) * 0.01, 1e-9)
    apart = _nice((high - low) / most)
    digits = max(0, -math.floor(math.log10(apart) + 1e-9))
    values = [step * apart for step in range(math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9) + 1)]

    def at(value: float) -> float:
        return min(max((value - low) / (high - low), 0.0), 1.0)

    return Axis(at, [(at(value), f"{value:.{digits}f}" if digits < 6 else f"{value:.3g}") for value in values])


def logarithmic(low: float, high: float) -> Axis:
    """Both above 0."""
    if not high > low:
        low, high = low / 1.1, high * 1.1

    def at(value: float) -> float:
        return min(max(math.log(max(value, 1e-300) / low) / math.log(high / low), 0.0), 1.0)

    powers = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        values = [step * 10.0**power for power in powers for step in steps]
        values = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(values) >= 3:
            break
    values = values if len(values) >= 2 else [low, high]
    return Axis(at, [(at(value), f"{value:.3g}") for value in values])


def _nice(apart: float) -> float:
    power = 10.0 ** math.floor(math.log10(apart))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= apart * (1 - 1e-9))


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(kind: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def dot(kind: str, x: float, y: float, radius: float = 3.5) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def bar(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}"/>'


def cross(x: float, y: float) -> str:
    return line("cross", x - 3, y - 3, x + 3, y + 3) + line("cross", x - 3, y + 3, x + 3, y - 3)


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
