"""An API server that lists and watches: versions, pages, selectors, bookmarks, 410, and streams cut anywhere.

What it does as the real one does: every change has the next version of one counter; a watch goes on from a version
or is refused with 410 when that is too old; DELETED carries the object's last state; a watch ends after
``timeoutSeconds``; bookmarks come only to those who ask for them.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

Object = dict[str, Any]


@dataclass
class _Stream:
    """One open watch."""

    kind: str
    selector: str
    bookmarks: bool
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


@dataclass(frozen=True)
class _Change:
    version: int
    kind: str
    event: str
    item: Object


class FakeKubernetes:
    """Objects by kind, ``nodes`` or ``<namespace>/configmaps``.

    ``requests`` are the query parameters of every request by kind. While ``refusal`` is set, every request is
    answered with it: a code with a reason, or without one as a proxy does.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.refusal: tuple[int, str] | None = None
        self.page_limit = 500
        self._objects: dict[tuple[str, str], Object] = {}
        self._changes: list[_Change] = []
        self._version = 100
        self._oldest = 100
        self._streams: list[_Stream] = []
        app = web.Application()
        app.router.add_get("/api/v1/nodes", self._nodes)
        app.router.add_get("/api/v1/namespaces/{namespace}/configmaps", self._configmaps)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.url = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.cut()
        await self._runner.cleanup()

    @property
    def watches(self) -> int:
        """Open watches."""
        return len(self._streams)

    def put(self, kind: str, item: Object) -> None:
        """Create or replace an object."""
        key = (kind, item["metadata"]["name"])
        self._change(kind, "MODIFIED" if key in self._objects else "ADDED", item)

    def configmap(self, namespace: str, name: str, data: dict[str, str], **labels: str) -> None:
        """Create or replace a ConfigMap; underscores in names of labels are dashes."""
        named = {label.replace("_", "-"): value for label, value in labels.items()}
        metadata = {"name": name, "namespace": namespace, "labels": named}
        self.put(f"{namespace}/configmaps", {"metadata": metadata, "data": data})

    def delete(self, kind: str, name: str) -> None:
        """Delete an object."""
        self._change(kind, "DELETED", self._objects[kind, name])

    def forget(self) -> None:
        """Compact: no watch can go on from what was before."""
        self._changes.clear()
        self._version += 1
        self._oldest = self._version

    def bookmark(self) -> None:
        """Tell every watch that asked for it which version it has reached."""
        for stream in self._streams:
            if stream.bookmarks:
                item = {"kind": "ConfigMap", "metadata": {"resourceVersion": str(self._version)}}
                stream.queue.put_nowait(_line("BOOKMARK", item))

    def say(self, raw: bytes) -> None:
        """Write bytes to every watch as they are."""
        for stream in self._streams:
            stream.queue.put_nowait(raw)

    def expire(self) -> None:
        """End every watch with a 410 inside the stream."""
        status = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
        self.say(_line("ERROR", status))

    def cut(self) -> None:
        """End every watch."""
        for stream in self._streams:
            stream.queue.put_nowait(None)

    def _change(self, kind: str, event: str, item: Object) -> None:
        self._version += 1
        item = copy.deepcopy(item)
        item["metadata"]["resourceVersion"] = str(self._version)
        key = (kind, item["metadata"]["name"])
        if event == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = item
        self._changes.append(_Change(self._version, kind, event, item))
        for stream in self._streams:
            if stream.kind == kind and _selected(item, stream.selector):
                stream.queue.put_nowait(_line(event, item))

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "nodes")

    async def _configmaps(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, f"{request.match_info['namespace']}/configmaps")

    async def _answer(self, request: web.Request, kind: str) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((kind, query))
        if self.refusal:
            code, reason = self.refusal
            if not reason:
                return web.Response(status=code, text="<html>sorry</html>", content_type="text/html")
            status = {"kind": "Status", "code": code, "reason": reason, "message": f"{kind} is {reason}"}
            return web.json_response(status, status=code)
        selector = query.get("labelSelector", "") or query.get("fieldSelector", "")
        if query.get("watch", "").lower() == "true":
            return await self._watch(request, kind, selector, query)
        return self._list(kind, selector, query)

    def _list(self, kind: str, selector: str, query: dict[str, str]) -> web.Response:
        items = [item for (of, _), item in sorted(self._objects.items()) if of == kind and _selected(item, selector)]
        start = int(query.get("continue", 0))
        end = start + min(int(query.get("limit", self.page_limit)), self.page_limit)
        metadata = {"resourceVersion": str(self._version)} | ({"continue": str(end)} if end < len(items) else {})
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[start:end]})

    async def _watch(self, request: web.Request, kind: str, selector: str, query: dict[str, str]) -> web.StreamResponse:
        since = int(query.get("resourceVersion") or 0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async with self._open(kind, selector, query) as stream:
            if since < self._oldest:
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old: {since}"}
                stream.queue.put_nowait(_line("ERROR", status))
                stream.queue.put_nowait(None)
            for change in self._changes:
                if change.version > since and change.kind == kind and _selected(change.item, selector):
                    stream.queue.put_nowait(_line(change.event, change.item))
            with suppress(ConnectionResetError):  # the client has gone
                with suppress(TimeoutError):  # as long as was asked for
                    async with asyncio.timeout(float(query.get("timeoutSeconds", 3600))):
                        while (line := await stream.queue.get()) is not None:
                            # In chunks, because nothing promises that a line is one.
                            for chunk in filter(None, (line[:20], line[20:])):
                                await response.write(chunk)
                await response.write_eof()
        return response

    @asynccontextmanager
    async def _open(self, kind: str, selector: str, query: dict[str, str]) -> AsyncIterator[_Stream]:
        stream = _Stream(kind, selector, query.get("allowWatchBookmarks", "").lower() == "true")
        self._streams.append(stream)
        try:
            yield stream
        finally:
            self._streams.remove(stream)


def _selected(item: Object, selector: str) -> bool:
    if not selector:
        return True
    name, _, value = selector.partition("=")
    if name == "metadata.name":
        return bool(item["metadata"]["name"] == value)
    return bool(item["metadata"].get("labels", {}).get(name) == value)


def _line(event: str, item: Object) -> bytes:
    return json.dumps({"type": event, "object": item}).encode() + b"\n"
