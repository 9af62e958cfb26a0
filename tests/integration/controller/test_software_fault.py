"""Faults over the unary RPC behind `POST /controller/report_software_fault` (RFC section 4.4)."""

import pytest

from motor_ft.model.engine import EngineStatus
from motor_ft.model.errors import FieldError
from motor_ft.v1 import common_pb2, fault_report_pb2
from motor_ft.wire.channel import call
from tests.integration.controller.reporters import Desk, served, welcomed


def software_fault(**change: object) -> fault_report_pb2.ReportSoftwareFaultRequest:
    """A good report over the unary RPC."""
    fields: dict[str, object] = {
        "pod_ip": "10.0.0.1",
        "node_manager_port": 9000,
        "engine_id": 1,
        "engine_status": common_pb2.ENGINE_STATUS_DEAD,
        "exception_type": "EngineDeadError",
        "exception_message": "rank 1 is gone",
        "additional_info": {"card": "3"},
    }
    return fault_report_pb2.ReportSoftwareFaultRequest(**(fields | change))  # type: ignore[arg-type]


async def test_a_software_fault_over_the_unary_rpc() -> None:
    desk = Desk()
    async with served(desk) as stub:
        assert (await call(stub.ReportSoftwareFault, software_fault(instance_id=7), timeout=5)).accepted
        assert (await call(stub.ReportSoftwareFault, software_fault(), timeout=5)).accepted
    first, second = desk.software
    assert (first.instance_id, second.instance_id) == (7, None)
    assert (first.pod_ip, first.node_manager_port, first.rank) == ("10.0.0.1", 9000, 1)
    assert (first.observation.status, first.observation.fault_info) == (EngineStatus.DEAD, "EngineDeadError")
    assert first.observation.detail == "rank 1 is gone card=3"


@pytest.mark.parametrize(
    "change",
    [
        {"pod_ip": ""},
        {"node_manager_port": 0},
        {"node_manager_port": 65536},
        {"engine_id": -1},
        {"engine_status": common_pb2.ENGINE_STATUS_UNSPECIFIED},
        {"engine_status": common_pb2.ENGINE_STATUS_DIAGNOSING},
        {"instance_id": 0},
    ],
    ids=str,
)
async def test_a_malformed_software_fault_is_refused_by_field(change: dict[str, object]) -> None:
    desk = Desk()
    async with served(desk) as stub:
        with pytest.raises(FieldError) as refusal:
            await call(stub.ReportSoftwareFault, software_fault(**change), timeout=5)
    assert list(refusal.value.violations) == list(change)
    assert desk.software == []


async def test_with_the_feature_off_a_software_fault_is_not_accepted() -> None:
    desk = Desk()
    async with served(desk, enabled=False) as stub:
        assert not (await call(stub.ReportSoftwareFault, software_fault(), timeout=5)).accepted
        await welcomed(stub)
    assert desk.software == []
