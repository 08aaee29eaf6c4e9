"""What to send: as the user says it, or made up by what the server says about its models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flatout.base.errors import UsageError
from flatout.loadtest.inference import infer_requests
from flatout.loadtest.one_answer import OneAnswer, ask_once
from flatout.loadtest.requests import PREDICT, LoadRequest, of_body, of_path, of_row, of_rows, with_headers
from flatout.loadtest.target import LoadTarget


@dataclass(frozen=True)
class LoadContent:
    """`tensors`: random ones, even if the rest would not ask for them."""

    row: str | None = None
    rows: Path | None = None
    body: Path | None = None
    content_type: str | None = None
    tensors: bool = False
    json_tensors: bool = False
    model: str | None = None
    batch: int = 1
    headers: tuple[str, ...] = ()

    def requests(self, target: LoadTarget, timeout_s: float, seed: int) -> list[LoadRequest]:
        self._check(target)
        path = target.path or PREDICT
        if self.row is not None:
            made = of_row(self.row, path)
        elif self.rows is not None:
            made = of_rows(self.rows, path)
        elif self.body is not None:
            made = of_body(self.body, self.content_type, path)
        elif target.path:
            made = of_path(target.path)
        else:

            def ask(request: LoadRequest) -> OneAnswer:
                return ask_once(target, with_headers([request], self.headers)[0], timeout_s)

            made = infer_requests(ask, self.model, self.batch, self.json_tensors, seed)
        return with_headers(made, self.headers)

    def _check(self, target: LoadTarget) -> None:
        made_up = self.tensors or self.json_tensors or self.model is not None or self.batch != 1
        given = {"--row": self.row is not None, "--rows": self.rows is not None, "--body": self.body is not None,
                 "random tensors (--tensors, --json-tensors, --model, --batch)": made_up}  # fmt: skip
        told = [name for name, is_given in given.items() if is_given]
        if len(told) > 1:
            raise UsageError(f"{' and '.join(told)} each say what to send: give one of them")
        if self.content_type is not None and self.body is None:
            raise UsageError("--type is the content type of --body, which is missing")
        if made_up and target.path:
            raise UsageError(f"random tensors go to the path that the protocol says: leave {target.path} out of the URL")
