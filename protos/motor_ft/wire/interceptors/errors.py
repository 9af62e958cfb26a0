"""Outermost: whatever a call raises becomes a status that our clients can read."""

from types import TracebackType
from typing import Any

import grpc

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.errors import abort


class ErrorsMapped:
    """Aborts the RPC with the error that is raised inside; texts of unexpected ones never leave the process."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, grpc.aio.AbortError):
            return  # the servicer has said what it means
        if isinstance(error, FtError):
            await abort(self._context, error)
        if isinstance(error, Exception):
            await abort(self._context, FtError(Reason.INTERNAL, "internal error; the server's log has it"))
