"""The Controllers as the REST routes see them: a gRPC client that finds the one that leads."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2, controller_pb2_grpc, fault_report_pb2, fault_report_pb2_grpc
from motor_ft.wire.channel import call, connected, failing, open_channel
from motor_ft.wire.log import get_logger
from motor_ft.wire.tls import ClientTls

MAX_NAMED = 2
"""Addresses beyond the configured ones that one request follows: a leader, and who leads after it."""
_PAGE = 1000
_NOT_HERE = {Reason.NOT_LEADER, Reason.EPOCH_BEHIND_FLEET, Reason.SHUTTING_DOWN}
"""Said before a request is looked at: it was certainly not carried out."""

Request = TypeVar("Request")
Response = TypeVar("Response")
_log = get_logger(__name__)


class _Peer:
    """One Controller, leader or not."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        self.channel = open_channel(address, peer="the Controller", tls=tls)
        self.controller = controller_pb2_grpc.ControllerServiceStub(self.channel)
        self.reports = fault_report_pb2_grpc.FaultReportServiceStub(self.channel)


@dataclass
class _Search:
    """Where one request still goes, and why it was not answered where it has been."""

    ahead: list[str]
    named: int = 0
    asked: set[str] = field(default_factory=set)
    refusals: dict[str, FtError] = field(default_factory=dict)

    def next(self) -> str | None:
        """An address that was not asked yet; None at the end."""
        while self.ahead:
            if (address := self.ahead.pop(0)) not in self.asked:
                self.asked.add(address)
                return address
        return None

    def failed(self, address: str, error: FtError) -> None:
        """Not there: go where it says first."""
        self.refusals[address] = error
        leader = error.metadata.get("leader", "")
        if leader and leader not in self.asked and self.named < MAX_NAMED:
            self.named += 1
            self.ahead.insert(0, leader)

    def error(self) -> FtError:
        """Nobody has answered: what was heard of everybody."""
        said = "; ".join(f"{address}: {error.message}" for address, error in self.refusals.items())
        reason = next(
            (e.reason for e in self.refusals.values() if e.reason in _NOT_HERE), Reason.CONTROLLER_UNREACHABLE
        )
        return FtError(reason, f"no Controller answers for the fleet now, try again: {said}")


class ControllerClient:
    """Calls whichever of ``controllers``, ``host:port``, leads; ``timeout`` in seconds for each call of each of them.

    Every method raises FtError: what the Controller says; NOT_LEADER when none of those that answer leads;
    CONTROLLER_UNREACHABLE when none answers. A report that was sent and not answered is OUTCOME_UNKNOWN, and not sent
    to anybody else.
    """

    def __init__(self, controllers: Sequence[str], timeout: float, tls: ClientTls | None = None) -> None:
        self._tls = tls
        self._controllers = tuple(controllers)
        self._timeout = timeout
        self._leader = self._controllers[0]
        self._peers: dict[str, _Peer] = {}

    async def instance(self, instance_id: int) -> controller_pb2.Instance:
        """Read one instance; raises UNKNOWN_INSTANCE."""
        request = controller_pb2.GetInstanceRequest(instance_id=instance_id)
        return (await self._ask(lambda peer: peer.controller.GetInstance, request)).instance

    async def pages(self, page_size: int = _PAGE) -> AsyncIterator[controller_pb2.ListInstancesResponse]:
        """Read all instances, page by page."""
        token = ""
        while True:
            request = controller_pb2.ListInstancesRequest(page_size=page_size, page_token=token)
            page = await self._ask(lambda peer: peer.controller.ListInstances, request)
            yield page
            if not (token := page.next_page_token):
                return

    async def report(self, request: fault_report_pb2.ReportSoftwareFaultRequest) -> bool:
        """Report a fault; False means that fault tolerance is switched off."""
        return (await self._ask(lambda peer: peer.reports.ReportSoftwareFault, request, once=True)).accepted

    async def problem(self) -> str:
        """Why no Controller can be asked now; empty when one can."""
        try:
            await anext(self.pages(page_size=1))
        except FtError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        """Close the channels."""
        for peer in self._peers.values():
            await peer.channel.close()

    async def _ask(
        self,
        method: Callable[[_Peer], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        *,
        once: bool = False,
    ) -> Response:
        """Ask who answered last, then whom that one names, then the others.

        ``once``: not again after it was sent, unless it was refused before it was looked at.
        """
        search = _Search([self._leader, *self._controllers])
        while (address := search.next()) is not None:
            peer = await self._peer(address)
            try:
                if not await connected(peer.channel):
                    how = "in plain text: nobody listens there, or only with TLS"
                    if self._tls is not None:
                        how = "over TLS: nobody listens there, or only without TLS, or a certificate is refused"
                    raise FtError(Reason.CONTROLLER_UNREACHABLE, f"cannot be connected to {how}")
                answer = await call(method(peer), request, timeout=self._timeout)
            except FtError as error:
                unanswered = error.reason in {Reason.CONTROLLER_UNREACHABLE, Reason.OUTCOME_UNKNOWN}
                if (error.reason is Reason.OUTCOME_UNKNOWN and once) or not (unanswered or error.reason in _NOT_HERE):
                    raise
                search.failed(address, error)
            else:
                await self._follow(address)
                return answer
        raise search.error()

    async def _peer(self, address: str) -> _Peer:
        known = self._peers.get(address)
        if known is not None and not failing(known.channel):
            return known
        peer = self._peers[address] = _Peer(address, self._tls)
        if known is not None:
            await known.channel.close()
        return peer

    async def _follow(self, leader: str) -> None:
        """The next request goes there first; of who was only named, no connection stays open."""
        if leader == self._leader:
            return
        _log.info("following the controller", controller=leader, before=self._leader)
        self._leader = leader
        for address in self._peers.keys() - {leader, *self._controllers}:
            await self._peers.pop(address).channel.close()
