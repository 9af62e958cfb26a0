"""NodeLifecycleService."""

from collections.abc import Callable
from typing import Any

import grpc

from motor_ft.model.command import MAX_LEASE_SEC
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import node_lifecycle_pb2, node_lifecycle_pb2_grpc
from motor_ft.wire.convert import command_from_header, demand, duration_from_pb, pod_engine_to_pb
from motor_ft.wire.log import get_logger
from nodemanager.core.state import NodeState, relaunch_answer, relaunched, stopped, was_stopped
from nodemanager.journal import Journal
from nodemanager.pod import Pod
from nodemanager.relaunch import Relaunch

Context = grpc.aio.ServicerContext[Any, Any]
_log = get_logger(__name__)


class NodeLifecycleServicer(node_lifecycle_pb2_grpc.NodeLifecycleServiceServicer):
    """Ends one pod, or its engines; ``on_stop`` is called once the Stop was written and must not wait for the end."""

    def __init__(self, journal: Journal, pod: Pod, relaunch: Relaunch, on_stop: Callable[[], None]) -> None:
        self._journal = journal
        self._pod = pod
        self._relaunch = relaunch
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

    async def RestartEngines(
        self, request: node_lifecycle_pb2.RestartEnginesRequest, context: Context
    ) -> node_lifecycle_pb2.RestartEnginesResponse:
        """Answer once the order is durable; a repeat for the same instance and generation starts nothing again.

        A NodeManager that ends in the middle takes its engines with it and launches them at its own start.
        """
        command = command_from_header(request.header)
        timeout = duration_from_pb(request.timeout, "timeout")
        demand(0 < timeout <= MAX_LEASE_SEC, "timeout", f"must be more than 0 and at most {MAX_LEASE_SEC:g} s")
        self._relaunch.check()
        answer = node_lifecycle_pb2.RestartEnginesResponse(
            engines=[pod_engine_to_pb(known.engine()) for known in self._pod.health()]
        )
        if request.validate_only:
            return answer
        first = None

        def ordered(state: NodeState) -> NodeState:
            nonlocal first
            first = relaunch_answer(state, command)
            return relaunched(state, command, answer.SerializeToString()) if first is None else state

        await self._journal.update(ordered)
        if first is not None:
            return node_lifecycle_pb2.RestartEnginesResponse.FromString(first)
        _log.warning("restart engines", instance_id=command.instance_id, reason=request.reason)
        self._relaunch.begin(timeout)
        return answer
