"""A tree as a page: whole, on its own, and deaf to what names try to smuggle in."""

from __future__ import annotations

from html.parser import HTMLParser

from flatout.base.html import to_html
from flatout.base.tree import Cell, Doc, Fields, Picture, Table, TableColumn, TextLine, to_data, to_text

EVIL = '<script>alert("x")</script>&\'"'
COLUMNS = (TableColumn("name", "name"), TableColumn("n", "n", right=True), TableColumn("hidden", "hidden", shown=False))
DOC = Doc(
    (
        TextLine("A heading", strong=True),
        TextLine(),
        TextLine("and words"),
        Fields({"only": "for programs"}),
        Table(
            "rows",
            COLUMNS,
            [{"name": "first", "n": Cell(1000, "1k"), "hidden": "unseen"}],
            fold=[{"name": "folded away", "n": 2}],
            fold_note="more like it",
        ),
        Picture('<svg xmlns="http://www.w3.org/2000/svg"/>', "what it shows"),
    )
)


class Reader(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open:
            self.words.setdefault(self.open[-1], []).append(data)


def test_a_page_shows_what_the_text_shows_and_the_folded_rows() -> None:
    page = Reader(to_html(DOC, "Plan"))
    assert page.words["title"] == page.words["h1"] == ["Plan"]
    assert page.words["h2"] == ["A heading"] and page.words["p"] == ["and words"]
    assert page.words["td"] == ["first", "1k", "folded away", "2"] and page.words["summary"] == ["1 more like it"]
    assert page.words["th"] == ["name", "n"] * 2 and page.words["figcaption"] == ["what it shows"]
    assert "unseen" not in to_html(DOC, "Plan") and "for programs" not in to_html(DOC, "Plan")


def test_a_page_needs_nothing_from_elsewhere() -> None:
    page = Reader(to_html(DOC, "Plan"))
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "link", "iframe", "object", "svg"}
    assert all((found.get("src") or "data:").startswith("data:") and "href" not in found for _, found in page.seen)
    policy = next(found["content"] for tag, found in page.seen if found.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")


def test_hostile_names_stay_words() -> None:
    column = TableColumn("x", EVIL)
    doc = Doc(
        (
            TextLine(EVIL, strong=True),
            TextLine(EVIL),
            Table("t", (column,), [{"x": EVIL}], fold=[{"x": Cell(1, EVIL)}], fold_note=EVIL),
            Picture(f"<svg>{EVIL}</svg>", EVIL),
        )
    )
    written = to_html(doc, EVIL)
    page = Reader(written)
    assert "<script" not in written and not any(tag == "script" for tag, _ in page.seen)
    for place in ("title", "h1", "h2", "p", "th", "td", "figcaption"):
        assert set(page.words[place]) == {EVIL}
    assert [found["alt"] for tag, found in page.seen if tag == "img"] == [EVIL]


def test_a_picture_is_for_pages_only() -> None:
    doc = Doc((TextLine("words"), Picture("<svg/>", "caption")))
    assert to_text(doc) == "words" and to_data(doc) == {}
