"""NodeLifecycleService."""

from collections.abc import Callable
from typing import Any

import grpc

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import node_lifecycle_pb2, node_lifecycle_pb2_grpc
from motor_ft.wire.convert import command_from_header
from motor_ft.wire.log import get_logger
from nodemanager.core.state import stopped, was_stopped
from nodemanager.journal import Journal

Context = grpc.aio.ServicerContext[Any, Any]
_log = get_logger(__name__)


class NodeLifecycleServicer(node_lifecycle_pb2_grpc.NodeLifecycleServiceServicer):
    """Stops one pod; ``on_stop`` is called once the Stop was written and must not wait for the pod's end."""

    def __init__(self, journal: Journal, on_stop: Callable[[], None]) -> None:
        self._journal = journal
        self._on_stop = on_stop

    async def Stop(self, request: node_lifecycle_pb2.StopRequest, context: Context) -> node_lifecycle_pb2.StopResponse:
        """Answer, and end; a repeat for the same instance and generation ends nothing that was started since.

        A disk that fails does not keep the engines alive: ending is the safe direction, and a repeat may end once more.
        """
        command = command_from_header(request.header)
        if not was_stopped(self._journal.state, command):
            try:
                await self._journal.update(lambda state: stopped(state, command))
            except FtError as error:
                if error.reason is not Reason.STORE_UNAVAILABLE:
                    raise
                _log.error("stop is not durable", reason=str(error))
            _log.warning("stop", instance_id=command.instance_id, reason=request.reason)
            self._on_stop()
        return node_lifecycle_pb2.StopResponse()
