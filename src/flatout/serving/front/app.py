"""The whole front of one process: models in, a protocol factory out.

app = FrontApp({"churn": {"1": model}}, asking, watching)
server = await loop.create_server(app.protocol_factory, sock=socket)
app.start(loop)
app.swap(models)        # requests under way finish with the models that they began with
app.draining = True     # answers end their connections; then wait for app.in_flight == 0
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter

from flatout.serving.asking import Array, Asking, ServedModel
from flatout.serving.drift.sampling import DriftSampling
from flatout.serving.front.canary_split import CanarySplit, SplitRule
from flatout.serving.front.desk import Desk
from flatout.serving.front.hooks import RowHooks
from flatout.serving.front.http import HttpConnection
from flatout.serving.front.limits import Limits
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.oip_pages import OipPages
from flatout.serving.front.openapi import openapi_page
from flatout.serving.front.repository import Repository
from flatout.serving.front.routing import Page, build_routes
from flatout.serving.front.sampling_desk import AnyDesk, KeepsSamples, SamplingDesk
from flatout.serving.front.site import Handler, Routes, Site
from flatout.serving.front.watching import Watching

Versions = Mapping[str, Mapping[str, ServedModel]]


class FrontApp:
    """`models`: by name, then by version, the newest last. `extra_routes`: further GET paths, as "/metrics". `arms`: where what
    versions did is counted while a canary is judged."""

    def __init__(
        self,
        models: Versions,
        asking: Asking,
        watching: Watching,
        repository: Repository | None = None,
        limits: Limits | None = None,
        token: str | None = None,
        hooks: RowHooks | None = None,
        extra_routes: Mapping[str, Page] | None = None,
        samples: KeepsSamples | None = None,
        arms: Array | None = None,
        extra_posts: Mapping[str, Handler] | None = None,
        drift: DriftSampling | None = None,
    ) -> None:
        self._watching, self._repository = watching, repository
        self._limits = limits or Limits()
        desk = Desk(asking, hooks or RowHooks(), self._limits, drift)
        self._desk: AnyDesk = desk if samples is None else SamplingDesk(desk, samples)
        self._arms, self._extra_posts = arms, dict(extra_posts or {})
        self._rule: SplitRule | None = None
        self._control: ServedModel | None = None
        self._control_view: ModelView | None = None
        self._extra, self._has_token = dict(extra_routes or {}), token is not None
        self.ready = True
        self._views: list[ModelView] = []
        self._site = Site(self._limits, token, watching, self._routes(models))
        self._timer: asyncio.TimerHandle | None = None

    @property
    def site(self) -> Site:
        """For other protocols than HTTP."""
        return self._site

    @property
    def connections(self) -> int:
        return len(self._site.connections)

    @property
    def in_flight(self) -> int:
        """Requests that have come whole and are not answered."""
        return self._site.in_flight

    @property
    def receiving(self) -> int:
        """Requests of which a part has come."""
        return sum(connection.is_receiving for connection in self._site.connections)

    @property
    def draining(self) -> bool:
        return self._site.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._site.draining = draining

    def swap(self, models: Versions, rule: SplitRule | None = None, control: ServedModel | None = None) -> None:
        """`rule`: one of the models has a canary; it is among its versions. `control` is not: nobody asks it by name."""
        self._rule, self._control = rule, control
        self._site.routes = self._routes(models)

    def protocol_factory(self) -> HttpConnection:
        return HttpConnection(self._site)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to check the limits of time."""
        self._site.tick()
        now = perf_counter()
        for connection in tuple(self._site.connections):
            connection.sweep(now)
        self._timer = loop.call_later(self._limits.sweep_s, self.start, loop)

    def stop(self) -> None:
        """No more checks, and idle connections are closed."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self._site.connections):
            connection.close_if_idle()

    def _routes(self, models: Versions) -> Routes:
        known = {id(view.model): view for view in self._views}  # packages at the same path may differ
        views = {
            name: {version: known.get(id(model)) or ModelView(model) for version, model in versions.items()}
            for name, versions in models.items()
        }
        self._views = [view for versions in views.values() for view in versions.values()]
        pages = OipPages(views, self._watching, self._repository, lambda: self.ready)
        openapi = openapi_page(views, self._has_token)
        return build_routes(views, self._desk, pages, self._extra, openapi, self._splits(views), self._extra_posts)

    def _splits(self, views: Mapping[str, Mapping[str, ModelView]]) -> dict[str, CanarySplit]:
        rule, arms = self._rule, self._arms
        if rule is None or arms is None or rule.version not in views.get(rule.name, {}):
            return {}
        versions, control = views[rule.name], self._control
        if control is None:
            self._control_view = None
        elif self._control_view is None or self._control_view.model is not control:
            self._control_view = ModelView(control)
        stable = list(versions.values())[-1]
        return {rule.name: CanarySplit(self._desk, stable, versions[rule.version], rule, arms, self._control_view)}
