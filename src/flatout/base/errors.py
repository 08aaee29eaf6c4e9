"""All errors that flatout raises for its users, as one tree.

    FlatoutError                 exit 1
    ├── UsageError               exit 2   an argument or a file has a mistake
    │   └── RecipeError                   all mistakes in a recipe at once
    ├── DataError                         the data is missing, empty, inconsistent or not numeric
    ├── ModelError                        the model can't be built or does not match its objective
    │   └── NotExportable                 a format can't hold the model or its preparation of rows
    ├── MachineError                      this machine lacks something that was requested
    │   └── MissingExtra                  an optional library is not installed
    ├── UnusableServer                    a server that was to be measured can't be reached, or refuses the request
    ├── StoreError                        a run folder or a checkpoint can't be used
    │   ├── NotARun
    │   ├── NotAPackage
    │   ├── RunBusy                       another process is training in this folder
    │   ├── MissingFile
    │   ├── DamagedFile                   a file's content changed after flatout wrote it
    │   └── DamagedCheckpoint
    └── TrainingError                     the run started but could not continue
        ├── Diverged
        ├── OutOfMemory
        ├── PeerLost                      another process of the run failed or disappeared; a restart may continue
        └── Stopped                       exit 129, 130 or 143: a signal stopped the run; it saved first

A message says what was expected, what was found, which argument is wrong, and what to set instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LONGEST_LINE, _MOST_LINES, _LONGEST_WORD = 600, 60, 200


class FlatoutError(Exception):
    exit_code = 1


class UsageError(FlatoutError):
    exit_code = 2


class RecipeError(UsageError):
    """All mistakes in a recipe at once; `problems` has one line for each."""

    def __init__(self, problems: Sequence[str], where: str = "recipe") -> None:
        self.problems = tuple(shortened(problem) for problem in problems)
        count = "1 mistake" if len(self.problems) == 1 else f"{len(self.problems)} mistakes"
        super().__init__("\n".join([f"{count} in {where}:", *(f"  - {problem}" for problem in self.problems)]))


class DataError(FlatoutError):
    pass


class ModelError(FlatoutError):
    pass


class NotExportable(ModelError):
    pass


class MachineError(FlatoutError):
    pass


class MissingExtra(MachineError):
    def __init__(self, library: str, extra: str, need: str) -> None:
        super().__init__(f"{need} needs {library}, which is not installed: pip install 'flatout[{extra}]'")


class UnusableServer(FlatoutError):
    pass


class StoreError(FlatoutError):
    pass


class NotARun(StoreError):
    pass


class NotAPackage(StoreError):
    pass


class RunBusy(StoreError):
    pass


class MissingFile(StoreError):
    pass


class DamagedFile(StoreError):
    pass


class DamagedCheckpoint(StoreError):
    pass


class TrainingError(FlatoutError):
    pass


class Diverged(TrainingError):
    pass


class OutOfMemory(TrainingError):
    pass


class PeerLost(TrainingError):
    pass


class Stopped(TrainingError):
    """A signal asked the run to stop; the run saved its state first."""

    def __init__(self, signal_name: str, exit_code: int, message: str) -> None:
        self.signal_name = signal_name
        self.exit_code = exit_code
        super().__init__(message)


def shortened(message: str) -> str:
    """Shorten a message for people: it may quote very long user input."""
    lines = message.split("\n")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"  ... and {len(lines) - _MOST_LINES:,} more lines"]
    return "\n".join(map(_cut, lines))


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE // 2]} [...] {line[-_LONGEST_LINE // 3 :]}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A suggestion to append to an error, or the list of known names if none is similar."""
    import difflib  # here: what goes well does without it

    names = sorted(known)
    near = difflib.get_close_matches(str(word)[:_LONGEST_WORD], names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known: " + ", ".join(names)
