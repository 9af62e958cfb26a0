"""The Controller as the REST routes see it: a gRPC client."""

from collections.abc import AsyncIterator

from motor_ft.v1 import controller_pb2, controller_pb2_grpc, fault_report_pb2, fault_report_pb2_grpc
from motor_ft.wire.channel import call, open_channel

_PAGE = 1000


class ControllerClient:
    """Calls the Controller at ``target``, ``host:port``; ``timeout`` in seconds for each call.

    Every method raises FtError: what the Controller says, or OUTCOME_UNKNOWN when it does not answer.
    """

    def __init__(self, target: str, timeout: float) -> None:
        self._channel = open_channel(target, peer="the Controller")
        self._controller = controller_pb2_grpc.ControllerServiceStub(self._channel)
        self._reports = fault_report_pb2_grpc.FaultReportServiceStub(self._channel)
        self._timeout = timeout

    async def instance(self, instance_id: int) -> controller_pb2.Instance:
        """Read one instance; raises UNKNOWN_INSTANCE."""
        request = controller_pb2.GetInstanceRequest(instance_id=instance_id)
        return (await call(self._controller.GetInstance, request, timeout=self._timeout)).instance

    async def pages(self) -> AsyncIterator[controller_pb2.ListInstancesResponse]:
        """Read all instances, page by page."""
        token = ""
        while True:
            request = controller_pb2.ListInstancesRequest(page_size=_PAGE, page_token=token)
            page = await call(self._controller.ListInstances, request, timeout=self._timeout)
            yield page
            if not (token := page.next_page_token):
                return

    async def report(self, request: fault_report_pb2.ReportSoftwareFaultRequest) -> bool:
        """Report a fault; False means that fault tolerance is switched off."""
        return (await call(self._reports.ReportSoftwareFault, request, timeout=self._timeout)).accepted

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()
