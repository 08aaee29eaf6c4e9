"""What the pages say, taken apart: blocks of code, words in backticks, tables, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def blocks(self, language: str) -> list[str]:
        return [content for kind, content in _FENCE.findall(self.text) if kind == language]

    def inline(self) -> list[str]:
        """Everything in single backticks, outside of blocks."""
        return re.findall(r"`([^`\n]+)`", _FENCE.sub("", self.text))

    def links(self) -> list[str]:
        return self.links_in(self.text)

    @staticmethod
    def links_in(text: str) -> list[str]:
        return re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text))

    def anchors(self) -> set[str]:
        """As GitHub makes them of headings."""
        titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", self.text), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}

    def section(self, title: str) -> str:
        """From a heading to the next one, of any level."""
        found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", self.text, re.MULTILINE | re.DOTALL)
        assert found is not None, f"{self.name} has no section {title!r}"
        return found[1]

    def commands(self) -> list[str]:
        """Every `flatout ...` that is shown, in shell blocks, indented lines and backticks."""
        shown = [line for block in self.blocks("sh") for line in block.splitlines()]
        shown += re.findall(r"^    (flatout .+)$", self.text, re.MULTILINE)
        shown += self.inline()
        return [line.partition(" #")[0].strip() for line in shown if line.startswith("flatout ")]


def first_column(table: str) -> list[str]:
    """The names in backticks of each row's first cell."""
    return [name for row in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]


README = Page(ROOT / "README.md")
GUIDE = Page(ROOT / "docs" / "guide.md")
PAGES = [
    README,
    Page(ROOT / "CONTRIBUTING.md"),
    *(Page(path) for path in sorted((ROOT / "docs").glob("*.md"))),
]
