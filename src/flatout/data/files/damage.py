"""What goes wrong in a library that reads a file, as an error that names the file.

Each library speaks of damaged files in many ways: a decoder may raise whatever its code stumbles on. Around the calls of a
library, and nothing else, all of it means the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flatout.base.errors import DataError, FlatoutError
from flatout.data.files.allowance import within_memory

_RUST_PANIC = "PanicException"  # of pyo3: derived from BaseException, and not to be imported by name
_LONGEST = 300


@contextmanager
def reading(name: str, how: str) -> Iterator[None]:
    """Around the calls of a library that reads the file `name`; `how` is "as Parquet", "to its end"."""
    with within_memory(name):
        try:
            yield
        except (FlatoutError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except Exception as error:
            raise DataError(f"{name} can't be read {how}, it is cut off or damaged: {in_words(error)}") from error
        except BaseException as error:
            if type(error).__name__ != _RUST_PANIC:
                raise
            raise DataError(f"{name} can't be read {how}, it is cut off or damaged: {in_words(error)}") from error


def in_words(error: BaseException) -> str:
    """The message, on one line and no longer than one reads; the kind of error where there is none."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= _LONGEST else said[:_LONGEST] + "..."
