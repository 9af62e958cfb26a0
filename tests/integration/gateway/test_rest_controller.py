"""The routes beside a Controller, in the RFC's own shapes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import common_pb2, controller_pb2
from tests.integration.gateway.rest_fakes import FakeController, Rest, serve_beside, serve_controller
from tests.support.ports import free_port
from tests.support.waiting import until

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
        controller.refusal = FtError(Reason.NOT_LEADER, "ask another")
        status, body = await rest.get(f"{STATUS}?instance_id=7")
        assert (status, body["error"]["reason"]) == (503, "NOT_LEADER")
        assert "ask another" in body["error"]["message"]

    async def test_a_controller_that_cannot_be_reached_is_503_and_named(self) -> None:
        target = f"127.0.0.1:{free_port()}"
        async with serve_beside(target) as rest:
            status, body = await rest.get(STATUS)
        assert (status, body["error"]["reason"]) == (503, "CONTROLLER_UNREACHABLE")
        assert f"{target}: cannot be connected to in plain text: nobody listens there" in body["error"]["message"]

    async def test_a_read_without_an_answer_has_no_outcome_that_could_be_unknown(
        self, controller: FakeController
    ) -> None:
        controller.frozen = True
        async with serve_controller(controller) as target, serve_beside(target, timeout=0.1) as rest:
            status, body = await rest.get(STATUS)
        assert (status, body["error"]["reason"]) == (503, "CONTROLLER_UNREACHABLE")
        assert "DEADLINE_EXCEEDED" in body["error"]["message"]


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

    @pytest.mark.parametrize(("reason", "status"), [(Reason.STORE_UNAVAILABLE, 503), (Reason.OVERLOADED, 429)])
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

    async def test_a_controller_that_cannot_be_reached_is_503(self) -> None:
        async with serve_beside(f"127.0.0.1:{free_port()}") as rest:
            status, body = await rest.post(REPORT, FAULT)
        assert (status, body["accepted"]) == (503, False)
        assert "CONTROLLER_UNREACHABLE" in body["reason"]


class Fleet:
    """Three Controllers at their addresses, of which a test says who leads."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.controllers: list[FakeController] = []
        self.addresses: list[str] = []

    async def start(self) -> None:
        for _ in range(3):
            controller = FakeController()
            controller.instances[7] = rfc_instance()
            self.controllers.append(controller)
            self.addresses.append(await self._stack.enter_async_context(serve_controller(controller)))

    def lead(self, leader: int | None, named: bool = True) -> None:
        """The others refuse, and say who leads."""
        for number, controller in enumerate(self.controllers):
            said = {"leader": self.addresses[leader]} if leader is not None and named else {}
            refusal = FtError(Reason.NOT_LEADER, f"controller {number} stands by", **said)
            controller.refusal = None if number == leader else refusal

    def reported(self) -> list[int]:
        """How many reports each has seen."""
        return [len(controller.reports) for controller in self.controllers]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack)
        await fleet.start()
        yield fleet


class TestLeader:
    """Whoever leads is found."""

    async def test_a_leader_that_is_named_is_followed_though_it_is_not_configured(self, fleet: Fleet) -> None:
        fleet.lead(2)
        async with serve_beside(fleet.addresses[0]) as rest:
            assert await rest.get(f"{STATUS}?instance_id=7") == (200, RFC_EXAMPLE)
            assert await rest.post(REPORT, FAULT) == (200, {"accepted": True})
            assert fleet.reported() == [0, 0, 1], "who led the last time is asked first"
            fleet.lead(1)
            assert await rest.post(REPORT, FAULT) == (200, {"accepted": True})
            assert fleet.reported() == [0, 1, 2]
            fleet.lead(0)
            assert await rest.get(STATUS) == (200, {"instances": [RFC_EXAMPLE]})

    async def test_without_a_name_the_others_are_asked(self, fleet: Fleet) -> None:
        fleet.lead(2, named=False)
        async with serve_beside(f"127.0.0.1:{free_port()}", *fleet.addresses) as rest:
            assert (await rest.get(STATUS))[0] == 200
            assert await rest.post(REPORT, FAULT) == (200, {"accepted": True})

    async def test_a_named_leader_that_is_gone_does_not_hide_the_one_that_leads_now(self, fleet: Fleet) -> None:
        fleet.lead(2)
        for controller in fleet.controllers[:2]:
            controller.refusal = FtError(Reason.NOT_LEADER, "stands by", leader=f"127.0.0.1:{free_port()}")
        async with serve_beside(*fleet.addresses) as rest:
            assert await rest.post(REPORT, FAULT) == (200, {"accepted": True})

    async def test_without_a_leader_everybody_is_asked_once_and_named(self, fleet: Fleet) -> None:
        """Also where they send the request in a circle."""
        for number, controller in enumerate(fleet.controllers):
            leader = fleet.addresses[(number + 1) % 3]
            controller.refusal = FtError(Reason.NOT_LEADER, f"not {number}", leader=leader)
        async with serve_beside(fleet.addresses[0]) as rest:
            status, body = await rest.post(REPORT, FAULT)
        assert status == 503
        assert body["reason"].startswith("NOT_LEADER: no Controller answers for the fleet now")
        assert all(address in body["reason"] for address in fleet.addresses)
        assert fleet.reported() == [1, 1, 1]

    async def test_a_read_goes_on_when_a_controller_hangs_and_a_report_does_not(self, fleet: Fleet) -> None:
        """The report may have been taken."""
        fleet.controllers[0].frozen = True
        async with serve_beside(*fleet.addresses[:2], timeout=2.0) as rest:
            status, body = await rest.post(REPORT, FAULT)
            assert (status, body["reason"].partition(":")[0]) == (502, "OUTCOME_UNKNOWN")
            assert fleet.reported() == [1, 0, 0]
            assert (await rest.get(STATUS))[0] == 200
            assert await rest.post(REPORT, FAULT) == (200, {"accepted": True})
            assert fleet.reported() == [1, 1, 0]

    async def test_a_report_under_way_to_who_led_has_no_known_outcome_when_another_one_is_followed(
        self, fleet: Fleet
    ) -> None:
        """The reporter is told so, whose connection would otherwise end without a word."""
        fleet.lead(2)
        async with serve_beside(fleet.addresses[0]) as rest:
            assert (await rest.get(STATUS))[0] == 200
            fleet.controllers[2].frozen = True
            report = asyncio.create_task(rest.post(REPORT, FAULT))
            await until(lambda: fleet.reported() == [0, 0, 1])
            fleet.controllers[2].frozen = False
            fleet.lead(1)
            assert (await rest.get(STATUS))[0] == 200
            status, body = await report
        assert (status, body["reason"].partition(":")[0]) == (502, "OUTCOME_UNKNOWN")
