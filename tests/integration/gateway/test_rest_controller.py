"""The routes beside a Controller, in the RFC's own shapes."""

from collections.abc import AsyncIterator

import pytest

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import common_pb2, controller_pb2
from tests.integration.gateway.rest_fakes import FakeController, Rest, serve_beside, serve_controller
from tests.support.ports import free_port

STATUS = "/controller/fault_tolerance/status"
REPORT = "/controller/report_software_fault"
FAULT = {
    "pod_ip": "10.0.0.5",
    "node_manager_port": 8080,
    "engine_id": 1,
    "engine_status": 1,
    "exception_type": "EngineDeadError",
    "exception_message": "gone",
    "additional_info": {"pid": 17, "note": "x"},
}
RFC_EXAMPLE = {
    "instance_id": 7,
    "phase": "SCALED_DOWN_RUNNING",
    "original_dp_ranks": [0, 1, 2, 3],
    "request_id": "<scale-down-request-id>",
    "dead_committed": [1],
    "pending_removed_ranks": [],
    "alive_dp_ranks": [0, 2, 3],
    "fallback_strategy": "<original-fallback>",
    "gate": {"allowed": True, "reason_codes": []},
    "engine_statuses": {},
    "serving_published": True,
    "last_error": None,
    "can_serve": True,
}


def rfc_instance() -> controller_pb2.Instance:
    """The instance of RFC section 7."""
    return controller_pb2.Instance(
        instance_id=7,
        phase=controller_pb2.PHASE_SCALED_DOWN_RUNNING,
        original_dp_ranks=[0, 1, 2, 3],
        request_id="<scale-down-request-id>",
        dead_committed=[1],
        alive_dp_ranks=[0, 2, 3],
        fallback_strategy="<original-fallback>",
        gate=controller_pb2.Gate(allowed=True),
        serving_published=True,
        can_serve=True,
        generation=4,
        job_name="not one of the 13 fields",
    )


@pytest.fixture
async def controller() -> FakeController:
    controller = FakeController()
    controller.instances[7] = rfc_instance()
    return controller


@pytest.fixture
async def rest(controller: FakeController) -> AsyncIterator[Rest]:
    async with serve_controller(controller) as target, serve_beside(target) as rest:
        yield rest


class TestStatus:
    """GET status."""

    async def test_one_instance_has_exactly_the_fields_of_the_rfc(self, rest: Rest) -> None:
        assert await rest.get(f"{STATUS}?instance_id=7") == (200, RFC_EXAMPLE)
        assert len(RFC_EXAMPLE) == 13

    async def test_a_fresh_instance_has_every_field_null_and_empty_ones_too(
        self, rest: Rest, controller: FakeController
    ) -> None:
        controller.instances[8] = controller_pb2.Instance(
            instance_id=8,
            phase=controller_pb2.PHASE_NORMAL,
            original_dp_ranks=[0],
            alive_dp_ranks=[0],
            fallback_strategy="instance_reconfiguration",
            engine_statuses={0: common_pb2.ENGINE_STATUS_HEALTHY},
        )
        assert await rest.get(f"{STATUS}?instance_id=8") == (
            200,
            {
                "instance_id": 8,
                "phase": "NORMAL",
                "original_dp_ranks": [0],
                "request_id": None,
                "dead_committed": [],
                "pending_removed_ranks": [],
                "alive_dp_ranks": [0],
                "fallback_strategy": "instance_reconfiguration",
                "gate": None,
                "engine_statuses": {"0": "healthy"},
                "serving_published": False,
                "last_error": None,
                "can_serve": False,
            },
        )

    async def test_all_instances_of_all_pages(self, rest: Rest, controller: FakeController) -> None:
        controller.instances |= {number: rfc_instance() for number in (8, 9)}
        for number in (8, 9):
            controller.instances[number].instance_id = number
        status, body = await rest.get(STATUS)
        assert status == 200
        assert [instance["instance_id"] for instance in body["instances"]] == [7, 8, 9]

    async def test_without_instances_the_list_is_empty(self, rest: Rest, controller: FakeController) -> None:
        controller.instances.clear()
        assert await rest.get(STATUS) == (200, {"instances": []})

    @pytest.mark.parametrize("query", ["", "?instance_id=7"])
    async def test_switched_off_it_says_disabled_and_nothing_else(
        self, rest: Rest, controller: FakeController, query: str
    ) -> None:
        controller.instances[7].phase = controller_pb2.PHASE_DISABLED
        assert await rest.get(STATUS + query) == (200, {"phase": "DISABLED", "instances": []})

    async def test_switched_off_without_an_instance_it_says_so_too(
        self, rest: Rest, controller: FakeController
    ) -> None:
        controller.instances.clear()
        controller.disabled = True
        assert await rest.get(STATUS) == (200, {"phase": "DISABLED", "instances": []})

    async def test_an_unknown_instance_is_404(self, rest: Rest) -> None:
        status, body = await rest.get(f"{STATUS}?instance_id=99")
        assert (status, body["error"]["reason"]) == (404, "UNKNOWN_INSTANCE")

    @pytest.mark.parametrize("text", ["x", "", "-1", "0", "1.5", "7%20", "%D9%A7", "9" * 30, str(2**63)])
    async def test_what_is_no_number_is_400(self, rest: Rest, text: str) -> None:
        status, body = await rest.get(f"{STATUS}?instance_id={text}")
        assert (status, body["error"]["reason"]) == (400, "INVALID_REQUEST")

    async def test_not_leading_is_503(self, rest: Rest, controller: FakeController) -> None:
        controller.refusal = FtError(Reason.NOT_LEADER, "ask another", leader="10.0.0.9:1")
        status, body = await rest.get(f"{STATUS}?instance_id=7")
        assert (status, body["error"]["reason"]) == (503, "NOT_LEADER")

    async def test_a_controller_that_does_not_answer_is_502_and_named(self) -> None:
        target = f"127.0.0.1:{free_port()}"
        async with serve_beside(target) as rest:
            status, body = await rest.get(STATUS)
        assert (status, body["error"]["reason"]) == (502, "OUTCOME_UNKNOWN")
        assert target in body["error"]["message"]


class TestReport:
    """POST report_software_fault."""

    async def test_a_report_reaches_the_controller_in_its_words(self, rest: Rest, controller: FakeController) -> None:
        assert await rest.post(REPORT, FAULT) == (200, {"accepted": True})
        (report,) = controller.reports
        assert not report.HasField("instance_id")
        assert (report.pod_ip, report.node_manager_port, report.engine_id) == ("10.0.0.5", 8080, 1)
        assert report.engine_status == common_pb2.ENGINE_STATUS_DEAD
        assert dict(report.additional_info) == {"pid": "17", "note": "x"}

    @pytest.mark.parametrize(
        ("number", "status"),
        [
            (0, common_pb2.ENGINE_STATUS_HEALTHY),
            (1, common_pb2.ENGINE_STATUS_DEAD),
            (2, common_pb2.ENGINE_STATUS_UNHEALTHY),
        ],
    )
    async def test_numbers_of_statuses(
        self, rest: Rest, controller: FakeController, number: int, status: common_pb2.EngineStatus.ValueType
    ) -> None:
        await rest.post(REPORT, FAULT | {"engine_status": number, "instance_id": 7, "something_new": 1})
        assert controller.reports[0].engine_status == status
        assert controller.reports[0].instance_id == 7

    async def test_switched_off_it_is_not_accepted_and_no_error(self, rest: Rest, controller: FakeController) -> None:
        controller.disabled = True
        assert await rest.post(REPORT, FAULT) == (200, {"accepted": False})
        controller.refusal = FtError(Reason.FEATURE_DISABLED, "off")
        assert await rest.post(REPORT, FAULT) == (200, {"accepted": False})

    @pytest.mark.parametrize("reason", [Reason.UNKNOWN_INSTANCE, Reason.UNKNOWN_RANK, Reason.INVALID_REQUEST])
    async def test_a_refused_report_is_400_with_the_reason(
        self, rest: Rest, controller: FakeController, reason: Reason
    ) -> None:
        controller.refusal = FtError(reason, "because")
        assert await rest.post(REPORT, FAULT) == (400, {"accepted": False, "reason": f"{reason}: because"})

    @pytest.mark.parametrize(("reason", "status"), [(Reason.NOT_LEADER, 503), (Reason.OVERLOADED, 429)])
    async def test_a_report_that_nobody_judged_is_not_the_reporters_fault(
        self, rest: Rest, controller: FakeController, reason: Reason, status: int
    ) -> None:
        controller.refusal = FtError(reason, "later")
        assert await rest.post(REPORT, FAULT) == (status, {"accepted": False, "reason": f"{reason}: later"})

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"engine_status": 3}, "engine_status"),
            ({"engine_status": True}, "engine_status"),
            ({"engine_id": -1}, "engine_id"),
            ({"engine_id": None}, "engine_id"),
            ({"pod_ip": ""}, "pod_ip"),
            ({"node_manager_port": 0}, "node_manager_port"),
            ({"instance_id": 0}, "instance_id"),
            ({"exception_type": 5}, "exception_type"),
            ({"additional_info": []}, "additional_info"),
        ],
    )
    async def test_a_bad_field_is_400_in_the_same_shape(
        self, rest: Rest, controller: FakeController, change: dict[str, object], field: str
    ) -> None:
        status, body = await rest.post(REPORT, FAULT | change)
        assert (status, body["accepted"]) == (400, False)
        assert field in body["reason"]
        assert controller.reports == []

    @pytest.mark.parametrize("text", [b"{", b'{"x":' + b"[" * 10_000], ids=["cut", "too deep"])
    async def test_what_is_not_json_is_400_in_the_same_shape(self, rest: Rest, text: bytes) -> None:
        status, body = await rest.post_raw(REPORT, text)
        assert (status, body["accepted"]) == (400, False)

    async def test_a_controller_that_does_not_answer_is_502(self) -> None:
        async with serve_beside(f"127.0.0.1:{free_port()}") as rest:
            status, body = await rest.post(REPORT, FAULT)
        assert (status, body["accepted"]) == (502, False)
