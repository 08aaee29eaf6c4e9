"""`flatout new`: looks at files and drafts a recipe for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError
from flatout.explore.drafting.arrays import draft_arrays, is_tokens
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.kinds import Given, look_at
from flatout.explore.drafting.labels import choose_label
from flatout.explore.drafting.photos import check_list, draft_images, image_column
from flatout.explore.drafting.sample import sample_of
from flatout.explore.drafting.tables import draft_table
from flatout.explore.drafting.texts import draft_text, draft_tokens, text_field


def draft(paths: Sequence[str], label: str | None, folder: Path, guard: Any = None) -> Draft:
    """A recipe to write into `folder`, for all paths together: one table, one folder of images, ...

    `label` is the column to predict, if the files have columns. `guard` is the option of a table: False, {"leak": False}.
    """
    found = look_at(paths)
    kind = found[0].kind
    if kind == "images":
        if len(found) > 1:
            raise UsageError(
                f"images are one folder, with a folder for each class; got {', '.join(one.typed for one in found)}"
            )
        return draft_images(found[0], label, folder, guard)
    if kind == "arrays":
        return draft_tokens(found, folder) if is_tokens(found) else draft_arrays(found, label, folder)
    if kind == "text" and label is None:
        return draft_text(found, folder)
    if kind == "tokens":
        _no_label(label, "tokens")
        return draft_tokens(found, folder)
    return _columns(found, label, folder, guard)


def _columns(found: Sequence[Given], label: str | None, folder: Path, guard: Any) -> Draft:
    """A table, unless its columns show a list of images or documents."""
    if len(found) > 1 or len(found[0].files) != 1:
        return draft_table(found, label, folder, guard=guard)
    sample = sample_of(found)
    images = image_column(sample)
    if images is not None and _exists(found[0], sample.columns[images].counts[0][0]):
        check_list(sample, images, found[0].typed, label)
        return draft_images(found[0], label, folder, guard)
    field = text_field(list(sample.columns)) if found[0].kind == "lines" and label is None else None
    if field is not None:
        try:
            choose_label(sample, None, found[0].name)
        except UsageError:
            return draft_text(found, folder, field)
    return draft_table(found, label, folder, sample, guard=guard)


def _exists(given: Given, image: str) -> bool:
    return os.path.exists(given.files[0].parent / image)  # the cell may not be a valid file name


def _no_label(label: str | None, what: str) -> None:
    if label is not None:
        raise UsageError(f"--label {label}: {what} have no columns; each token is learned from those before it")
