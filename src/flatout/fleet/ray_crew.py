"""The processes of a study on a Ray cluster: an actor for each device answers the questions of the command that drives it.

Ray Train is not used: its workers restart together when one is lost, and here the others go on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flatout.base.answering_child import GONE, AnsweringChild, NoAnswer
from flatout.base.errors import UsageError
from flatout.fleet.ray import WorkerCount, check_room, connected
from flatout.recipe.schema import Recipe
from flatout.tuning.crew.own_seats import started, told
from flatout.tuning.crew.seats import CrewSeat, answer_in, asked_of


@contextmanager
def ray_seats(
    recipe: Recipe,
    cache: Path | None,
    *,
    workers: WorkerCount,
    address: str | None,
    gpus: bool | None,
    say: Callable[[str], None],
) -> Iterator[list[CrewSeat]]:
    """As many devices as the cluster has now, within `workers`. `gpus`: one for each; None: if the cluster has any."""
    if recipe.source is None:
        raise UsageError("with --on ray tune reads the recipe on each worker: write it to a .yaml or .py file")
    with connected(address, workers, say) as (ray, own):
        use_gpu = ray.cluster_resources().get("GPU", 0) > 0 if gpus is None else gpus
        there = check_room(ray, workers, use_gpu, own, say)
        needs = {"num_gpus": 1} if use_gpu else {"num_cpus": 1}
        made = ray.remote(max_concurrency=2, **needs)(TrialActor)  # one question, and a request to stop
        given = told(recipe, cache, "", 0)
        actors = [made.remote(given) for _ in range(max(workers.least, min(workers.most, there)))]
        names = ray.get([actor.where.remote() for actor in actors])  # waits until they are placed
        try:
            members = [
                OnRay(ray, actor, f"worker {n} on {name}") for n, (actor, name) in enumerate(zip(actors, names, strict=True))
            ]
            yield [CrewSeat(one.name, lambda one=one: one, is_here=False) for one in members]  # type: ignore[misc]
        finally:
            for actor in actors:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)


class TrialActor:
    """On a node of the cluster: starts the process that trains, and passes questions on."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {**given, "path": [str(Path(given["recipe"]).parent), *sys.path]}
        self._member: AnsweringChild = started(self._given)

    def where(self) -> str:
        import ray

        return f"node {ray.util.get_node_ip_address()}"

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        return asked_of(self._member, question, limit_s)

    def stop(self) -> None:
        before, self._member = self._member, started(self._given)
        before.stop()


class OnRay:
    """A member of the crew that is an actor."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self.name = ray, actor, name

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        try:
            found = self._ray.get(self._actor.ask.remote(json.loads(json.dumps(question)), limit_s))
        except self._ray.exceptions.RayError as error:
            raise NoAnswer(GONE, f"{self.name} is gone: {type(error).__name__}") from None
        return answer_in(found, self.name)

    def stop(self) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._actor.stop.remote()
