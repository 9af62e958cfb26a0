"""Counts and logs how calls end."""

import time
from types import TracebackType
from typing import Any

import grpc

from motor_ft.model.errors import CATALOG, FtError, Reason
from motor_ft.wire.log import get_logger
from motor_ft.wire.metrics import RpcMetrics

_log = get_logger(__name__)


class Observed:
    """Counts a call by its code and a refusal by its reason, and ``timed`` calls by their duration."""

    def __init__(
        self, metrics: RpcMetrics, method: str, context: grpc.aio.ServicerContext[Any, Any], *, timed: bool
    ) -> None:
        self._metrics = metrics
        self._method = method
        self._context = context
        self._timed = timed

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._metrics.ended(self._method, self._code(error))
        if self._timed:
            self._metrics.took(self._method, time.monotonic() - self._started)

    def _code(self, error: BaseException | None) -> str:
        if error is None:
            return "OK"
        if isinstance(error, grpc.aio.AbortError):
            if isinstance(error.__cause__, FtError):
                return self._refused(error.__cause__)
            return self._context.code().name
        if isinstance(error, FtError):
            return self._refused(error)
        if isinstance(error, Exception):
            self._metrics.refused(Reason.INTERNAL)
            _log.error("rpc crashed", method=self._method, peer=self._context.peer(), exc_info=error)
            return CATALOG[Reason.INTERNAL].grpc_code
        return "CANCELLED"

    def _refused(self, error: FtError) -> str:
        self._metrics.refused(error.reason)
        peer = self._context.peer()
        _log.info("rpc refused", method=self._method, peer=peer, reason=error.reason, text=error.message)
        return CATALOG[error.reason].grpc_code
