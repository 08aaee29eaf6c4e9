"""The identity of a stage's code as its record keeps it, to say later what changed."""

from __future__ import annotations

from typing import Any

from flatout.pipelines.identity.code import CodeIdentity, CodePart


def code_as_json(found: CodeIdentity) -> dict[str, Any]:
    return {"digest": found.digest, "parts": [[one.name, one.digest] for one in found.parts]}


def code_from_json(written: Any) -> CodeIdentity:
    parts = tuple(CodePart(str(name), str(digest)) for name, digest in written["parts"])
    return CodeIdentity(str(written["digest"]), parts, (), ())
