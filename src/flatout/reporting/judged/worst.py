"""The held-out rows on which a classifier is surest of a wrong class, as photos where rows are images."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from torch import Tensor

from flatout.base.errors import FlatoutError
from flatout.base.tree import Cell, Node, Table, TableColumn, TextLine, Thumbnails
from flatout.base.units import show_share
from flatout.runs.held_out import HeldOut

_PHOTOS, _ROWS = 12, 10
_SIDE = 112  # pixels
_MOST_BYTES = 4000  # of a photo


def worst_nodes(held: HeldOut) -> list[Node]:
    own = held.own.double().numpy()
    wrong = np.flatnonzero(held.prediction.numpy() != held.truth.numpy())
    if not len(wrong):
        return [TextLine("Worst rows", strong=True), TextLine("All held-out rows are classified correctly.")]
    worst = wrong[np.argsort(own[wrong], kind="stable")]
    nodes: list[Node] = [TextLine("Worst rows", strong=True)]
    chosen = worst[:_PHOTOS].tolist()
    try:
        images = held.images(chosen)
    except FlatoutError as error:
        nodes.append(TextLine(f"They can't be shown as images: {error}"))
        images = []
    nodes.append(TextLine("Wrong answers for which the true class got the least probability. Are the labels right?"))
    if images:
        return [*nodes, Thumbnails([(_jpeg(image), _caption(held, row)) for image, row in zip(images, chosen, strict=True)])]
    columns = (
        TableColumn("row", f"row of the {held.part} part", right=True), TableColumn("true", "true class"),
        TableColumn("own", "its probability", right=True), TableColumn("said", "said"),
    )  # fmt: skip
    rows = [
        {
            "row": row, "true": held.name_of(int(held.truth[row])), "said": held.name_of(int(held.prediction[row])),
            "own": Cell(float(own[row]), show_share(float(own[row]))),
        }
        for row in worst[:_ROWS].tolist()
    ]  # fmt: skip
    return [*nodes, Table("worst", columns, rows)]


def _caption(held: HeldOut, row: int) -> str:
    true, said = (_short(held.name_of(int(numbers[row]))) for numbers in (held.truth, held.prediction))
    return f"{true} ({show_share(float(held.own[row]))}), said {said}"


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def _jpeg(image: Tensor) -> bytes:
    """Small images are shown with large pixels."""
    pixels = image.numpy()
    made = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    scale = _SIDE / max(made.size)
    size = tuple(max(1, round(side * scale)) for side in made.size)
    made = made.resize((size[0], size[1]), Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)
    for quality in (75, 50, 25, 10):
        content = _encoded(made, quality)
        if len(content) <= _MOST_BYTES:
            break
    return content


def _encoded(image: Image.Image, quality: int) -> bytes:
    made = io.BytesIO()
    image.save(made, "JPEG", quality=quality, optimize=True)
    return made.getvalue()
