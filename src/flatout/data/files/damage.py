"""Errors of libraries that read files, as a DataError that names the file.

A decoder may raise any kind of error for a damaged file. Around its calls, all of them mean the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flatout.base.errors import DataError, FlatoutError
from flatout.data.files.allowance import within_memory

_RUST_PANIC = "PanicException"  # of pyo3: derives from BaseException, and can't be imported
_LONGEST = 300


@contextmanager
def reading(name: str, how: str) -> Iterator[None]:
    """Wraps calls of a library that reads the file `name`; `how` is "as Parquet", "to its end"."""
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
    """The message on one line, shortened; the class of the error if it has no message."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= _LONGEST else said[:_LONGEST] + "..."
