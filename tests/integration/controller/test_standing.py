"""What a Controller answers that does not lead (protocol.md section 4)."""

from collections.abc import Awaitable

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types

from controller.fault_manager.board import Board
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2, controller_pb2_grpc, fault_report_pb2, fault_report_pb2_grpc
from motor_ft.wire.errors import DETAILS_KEY, from_rpc_error
from motor_ft.wire.policy import POLICIES
from tests.integration.controller.reporters import Desk
from tests.integration.controller.serving import add_instances, add_reports, connected, new_server


def not_leader() -> FtError:
    return FtError(Reason.NOT_LEADER, "ask there", leader="10.0.0.9:50051")


async def test_calls_are_refused_with_the_leaders_address_and_when_to_come_again() -> None:
    server = new_server(not_leader)
    add_instances(server, Board())
    add_reports(server, desk := Desk())
    async with connected(server) as channel:
        instances = controller_pb2_grpc.ControllerServiceStub(channel)
        reports = fault_report_pb2_grpc.FaultReportServiceStub(channel)
        calls: list[Awaitable[object]] = [
            instances.ListInstances(controller_pb2.ListInstancesRequest(), timeout=5),
            reports.ReportSoftwareFault(fault_report_pb2.ReportSoftwareFaultRequest(), timeout=5),
            instances.Explain(controller_pb2.ExplainRequest(instance_id=1), timeout=5),
            instances.ListEvents(controller_pb2.ListEventsRequest(), timeout=5),
            instances.Reconfigure(controller_pb2.ReconfigureRequest(), timeout=5),
            instances.WatchInstances(controller_pb2.WatchInstancesRequest(), timeout=5).read(),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            error = from_rpc_error(refused.value)
            assert (error.reason, error.metadata) == (Reason.NOT_LEADER, {"leader": "10.0.0.9:50051"})
            status = status_pb2.Status.FromString(refused.value.trailing_metadata()[DETAILS_KEY])
            assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)
    assert desk.software == []


async def test_an_open_watch_ends_with_that_too_when_leadership_is_lost() -> None:
    refusals = list[FtError]()
    server = new_server(lambda: refusals[0] if refusals else None)
    add_instances(server, Board())
    async with connected(server) as channel:
        watch = controller_pb2_grpc.ControllerServiceStub(channel).WatchInstances(
            controller_pb2.WatchInstancesRequest(), timeout=30
        )
        first = await watch.read()
        assert isinstance(first, controller_pb2.WatchInstancesResponse)
        assert first.snapshot_complete
        refusals.append(not_leader())
        await server.stop(5)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await watch.read()
        assert from_rpc_error(ended.value).reason is Reason.NOT_LEADER


def test_only_the_stream_of_reports_is_refused_in_words_of_its_own() -> None:
    """Whatever else a Controller serves is the leader's business."""
    services = ("/motor_ft.v1.ControllerService/", "/motor_ft.v1.FaultReportService/")
    open_ = [method for method, policy in POLICIES.items() if method.startswith(services) and not policy.leader]
    assert open_ == ["/motor_ft.v1.FaultReportService/FaultReport"]
