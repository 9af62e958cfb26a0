"""A small client of the engine dialects, for tests of the fakes: what a wire peer would see."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.support.engine.config import Dialect


class EngineClient:
    """Plain HTTP; answers as (status code, parsed body)."""

    def __init__(self, dialect: Dialect | str = Dialect.V1) -> None:
        self._prefix = Dialect(dialect).prefix
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, method: str, url: str, **options: Any) -> tuple[int, Any]:
        assert self._session is not None
        async with self._session.request(method, url, allow_redirects=False, **options) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def status(self, url: str) -> dict[str, Any]:
        """The only entry of this rank."""
        code, body = await self.call("GET", f"{url}{self._prefix}/status")
        assert code == 200, (code, body)
        entry: dict[str, Any] = body["engines"][0]
        return entry

    async def apply(self, url: str, instruction: str, request_id: str = "", **params: object) -> tuple[int, Any]:
        body: dict[str, object] = {"instruction": instruction, "params": params}
        if request_id:
            body["request_id"] = request_id
        return await self.post_apply(url, json=body)

    async def post_apply(self, url: str, **options: Any) -> tuple[int, Any]:
        return await self.call("POST", f"{url}{self._prefix}/apply", **options)

    async def complete(self, url: str) -> tuple[int, Any]:
        return await self.call("POST", f"{url}/v1/completions", json={"prompt": "ping", "max_tokens": 1})
