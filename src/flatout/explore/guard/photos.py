"""The same photo twice: among training and validation photos, or under two classes; also resized or compressed anew."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flatout.explore.guard.finding import GuardFinding

Array = np.ndarray[Any, Any]
Open = Callable[[], Any]  # a new stream of a file's bytes

_MOST = 2_000  # photos of a side: about 5 ms each
_SIDE = 8
_NEAR = 5  # of the 128 bits of a look
_FLAT = 6.0  # grey levels: a photo with less contrast looks like any other


def find_copied_photos(
    training: Sequence[Open], targets: Sequence[Any], held: Sequence[Open], where: str
) -> Iterator[GuardFinding]:
    """`where` is the name of the folder of `held`. Without one, copies inside of the training photos."""
    own = [_look(one) for one in training[:_MOST]]
    if held:
        other = [_look(one) for one in held[:_MOST]]
        copies = [place for place, one in enumerate(other) if _nearest(one, own) is not None]
        if copies:
            yield GuardFinding(
                "duplicate", where, len(copies) / len(other),
                f"{len(copies):,} of {len(other):,} photos are also training photos, as they are or resized",
                f"remove them from one of the folders: scores on {where} are too good",
            )  # fmt: skip
        return
    pairs = [(place, found) for place, one in enumerate(own) if (found := _nearest(one, own[:place])) is not None]
    if pairs:
        other_class = sum(targets[one] != targets[two] for one, two in pairs)
        several = f", {other_class:,} of them under another class" if other_class else ""
        yield GuardFinding(
            "duplicate", "photos", len(pairs) / len(own),
            f"{len(pairs):,} of {len(own):,} are copies of others, as they are or resized{several}",
            "remove them: a random holdout has them on both sides",
        )  # fmt: skip


def _look(open_photo: Open) -> tuple[bytes, Array | None]:
    """A hash of the bytes, and 128 bits of what it looks like: where it gets lighter, to the right and downward."""
    from PIL import Image

    with open_photo() as stream:
        content = stream.read()
    digest = hashlib.blake2b(content, digest_size=16).digest()
    try:
        import io

        with Image.open(io.BytesIO(content)) as photo:
            photo.draft("L", (4 * _SIDE, 4 * _SIDE))
            grey = np.asarray(photo.convert("L").resize((_SIDE + 1, _SIDE + 1), Image.Resampling.BOX), dtype=np.float32)
    except Exception:  # a damaged file: said elsewhere
        return digest, None
    if float(grey.std()) < _FLAT:
        return digest, None
    right, down = grey[:-1, 1:] > grey[:-1, :-1], grey[1:, :-1] > grey[:-1, :-1]
    return digest, np.concatenate([right.ravel(), down.ravel()])


def _nearest(one: tuple[bytes, Array | None], others: Sequence[tuple[bytes, Array | None]]) -> int | None:
    for place, other in enumerate(others):
        if one[0] == other[0]:
            return place
    if one[1] is None:
        return None
    seen = [place for place, other in enumerate(others) if other[1] is not None]
    if not seen:
        return None
    apart = (np.stack([other[1] for place in seen if (other := others[place])[1] is not None]) != one[1]).sum(1)
    return seen[int(apart.argmin())] if apart.min() <= _NEAR else None
