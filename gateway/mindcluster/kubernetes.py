"""Objects of one kind in the Kubernetes API: a list, then every change from there on."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp
import orjson
from kubernetes_asyncio import client, config

from gateway.mindcluster.core.observed import Source
from gateway.mindcluster.core.vocabulary import PayloadError, as_list, as_object, text_of
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.config import ConfigError
from motor_ft.wire.log import get_logger

LIST_SEC = 60.0
PAGE = 500
_CONNECT_SEC = 10.0
_GRACE_SEC = 15.0
_QUICK_SEC = 1.0
_GONE = 410

Object = Mapping[str, object]
_log = get_logger(__name__)


class ListObjects(Protocol):
    """A list call of the API with ``_preload_content=False``, whose other parameters are bound."""

    def __call__(self, **parameters: object) -> Awaitable[aiohttp.ClientResponse]:
        """Send the request."""
        ...


class Sink(Protocol):
    """Where objects go; ``source`` names it in logs."""

    source: Source

    def listed(self, objects: Sequence[Object]) -> None:
        """All that there are; what is missing is gone."""
        ...

    def changed(self, item: Object) -> None:
        """One is new or has changed."""
        ...

    def deleted(self, item: Object) -> None:
        """One is gone."""
        ...

    def working(self) -> None:
        """The list is complete, and changes arrive."""
        ...

    def broken(self, problem: str) -> None:
        """Changes no longer arrive."""
        ...


class _GoneError(Exception):
    """The server has forgotten the version to go on from."""


class ApiError(Exception):
    """The API refused, or answered what it must not."""


class ObjectWatch:
    """Keeps a sink up to date. ``watch_sec`` is for how long one watch is asked for, ``now`` is monotonic."""

    def __init__(
        self, call: ListObjects, sink: Sink, backoff: Backoff, *, watch_sec: float, now: Callable[[], float]
    ) -> None:
        self.name = sink.source
        self._call = call
        self._sink = sink
        self._backoff = backoff
        self._watch_sec = watch_sec
        self._now = now

    async def run(self) -> None:
        """List and watch until cancelled; after an error or a 410 from the beginning, with growing pauses."""
        while True:
            try:
                version = await self._list()
                while True:
                    started = self._now()
                    version = await self._watch(version)
                    # A server that ends every watch at once must not be asked without a pause.
                    if self._now() - started < _QUICK_SEC:
                        await asyncio.sleep(self._backoff.next())
            except _GoneError:
                _log.info("listing again: the server has forgotten our version", source=self.name)
            except (ApiError, PayloadError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                self._sink.broken(f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._backoff.next())

    async def _list(self) -> str:
        """Hand the whole list over, page by page one state of the cluster; returns its version."""
        objects: list[Object] = []
        token: str | None = None
        while True:
            async with asyncio.timeout(LIST_SEC):
                parameters = {"_continue": token} if token else {}
                async with await self._call(limit=PAGE, _request_timeout=LIST_SEC, **parameters) as response:
                    await _check(response)
                    page = as_object(orjson.loads(await response.read()), "list")
            objects += [as_object(item, "item") for item in as_list(page.get("items"), "items")]
            metadata = _metadata(page)
            if not (token := text_of(metadata.get("continue"))):
                self._sink.listed(objects)
                self._sink.working()
                return text_of(metadata.get("resourceVersion"))

    async def _watch(self, version: str) -> str:
        """Hand changes over until the server ends the watch; returns the version to go on from."""
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SEC, sock_read=self._watch_sec + _GRACE_SEC)
        async with await self._call(
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=round(self._watch_sec),
            _request_timeout=timeout,
        ) as response:
            await _check(response)
            while line := await response.content.readline():
                version = self._event(as_object(orjson.loads(line), "event")) or version
                self._backoff.reset()
        return version

    def _event(self, event: Mapping[str, object]) -> str:
        """Hand one change over; returns its version."""
        kind, item = text_of(event.get("type")), as_object(event.get("object"), "object")
        if kind == "ERROR":
            raise _refusal(item)
        if kind in {"ADDED", "MODIFIED"}:
            self._sink.changed(item)
        elif kind == "DELETED":
            self._sink.deleted(item)
        elif kind != "BOOKMARK":
            raise ApiError(f"unknown event {kind!r}")
        return text_of(_metadata(item).get("resourceVersion"))


async def open_api(server: str, kubeconfig: str) -> client.ApiClient:
    """Open a client of ``server`` without credentials, of a kubeconfig file, or else of the cluster that we run in.

    Raises ConfigError.
    """
    settings = client.Configuration()
    try:
        if server:
            settings.host = server.rstrip("/")
        elif kubeconfig:
            await config.load_kube_config(config_file=str(Path(kubeconfig)), client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        what = kubeconfig or "not in a pod (set kubernetes.kubeconfig or kubernetes.server otherwise)"
        raise ConfigError(f"kubernetes: {what}: {error}") from error
    return client.ApiClient(settings)


def name_of(item: Object) -> str:
    """Return an object's name; empty for an object that has none, as no server sends."""
    return text_of(_metadata(item).get("name"))


def _metadata(item: Object) -> Mapping[str, object]:
    metadata = item.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        try:
            status = as_object(orjson.loads(await response.read()), "status")
        except (orjson.JSONDecodeError, PayloadError):
            status = {}
        raise _refusal({"code": response.status, **status})


def _refusal(status: Mapping[str, object]) -> Exception:
    if status.get("code") == _GONE:
        return _GoneError()
    return ApiError(f"{text_of(status.get('code'))} {text_of(status.get('reason'))}: {text_of(status.get('message'))}")
