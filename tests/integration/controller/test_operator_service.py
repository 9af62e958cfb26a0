"""What operators ask and order, over real connections, of a FaultManager that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.json_format import MessageToDict
from grpc_reflection.v1alpha import reflection_pb2

from controller.core.history import EventKind
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.model.topology import Registration
from motor_ft.v1 import controller_pb2, controller_pb2_grpc, fault_report_pb2
from motor_ft.v1.common_pb2 import OperatorHeader
from motor_ft.v1.controller_pb2 import ExplainRequest, ExplainResponse, ListEventsRequest, ListEventsResponse
from motor_ft.wire.channel import call
from tests.integration.controller.serving import add_service, connected, new_server
from tests.support.waiting import until
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, U
from tests.support.world.world import SETTINGS, World

PODS = tuple(map(with_cards, TWO_PODS))
TIMEOUT = 10.0


@dataclass
class Served:
    """A world with an instance that serves, and a client of its Controller."""

    world: World
    stub: "controller_pb2_grpc.ControllerServiceAsyncStub"

    async def explain(self, instance_id: int = 1) -> ExplainResponse:
        return await call(self.stub.Explain, ExplainRequest(instance_id=instance_id), timeout=TIMEOUT)

    async def events(self, **fields: Any) -> ListEventsResponse:
        return await call(self.stub.ListEvents, ListEventsRequest(**fields), timeout=TIMEOUT)

    async def pause(self, **changed: Any) -> controller_pb2.Instance:
        request = controller_pb2.PauseAutomationRequest(header=header(**changed))
        return (await call(self.stub.PauseAutomation, request, timeout=TIMEOUT)).instance

    async def resume(self, **changed: Any) -> controller_pb2.Instance:
        request = controller_pb2.ResumeAutomationRequest(header=header(**changed))
        return (await call(self.stub.ResumeAutomation, request, timeout=TIMEOUT)).instance

    async def reconfigure(self, **changed: Any) -> controller_pb2.Instance:
        request = controller_pb2.ReconfigureRequest(header=header(**changed))
        return (await call(self.stub.Reconfigure, request, timeout=TIMEOUT)).instance

    async def orders(self) -> list[str]:
        page = await self.events(kinds=[controller_pb2.EVENT_KIND_OPERATOR])
        return [event.attributes["order"] for event in page.events]


def header(**changed: Any) -> OperatorHeader:
    fields = {"instance_id": 1, "request_id": "r-1", "operator": "ann", "reason": "upgrade of node-1"}
    return OperatorHeader(**{**fields, **changed})


@asynccontextmanager
async def serving(*pods: Registration, scale_down: bool = True) -> AsyncIterator[Served]:
    """Instance 1 serves."""
    settings = replace(SETTINGS, enable_dp_scale_down=scale_down)
    async with World(*(pods or PODS), settings=settings) as world:
        server = new_server()
        add_service(server, world.controller)
        async with connected(server) as channel:
            await world.serve()
            yield Served(world, controller_pb2_grpc.ControllerServiceStub(channel))


def as_dict(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


# --- Explain ---


async def test_an_instance_that_is_well_is_explained() -> None:
    async with serving() as served:
        said = as_dict(await served.explain())
        assert said["decision"] == {"action": "none", "reason": "no active rank is UNHEALTHY or DEAD", "row": "10"}
        assert said["gate"] == {"allowed": True}
        assert said["participants"] == [
            {"pod_name": "pod-1", "node_manager_address": "10.0.0.1:9000", "survivors": [0, 1]},
            {"pod_name": "pod-2", "node_manager_address": "10.0.0.2:9000", "survivors": [2, 3]},
        ]
        assert "blockers" not in said
        known = said["snapshot"]
        assert (known["phase"], known["ready"], known["in_service"]) == ("PHASE_NORMAL", True, True)
        assert known["active_dp_ranks"] == [0, 1, 2, 3]
        assert known["enabled_strategies"] == sorted(served.world.controller.strategies)
        assert {rank["status"] for rank in known["ranks"]} == {"ENGINE_STATUS_HEALTHY"}


async def test_a_collection_is_explained_with_sources_ages_and_what_is_left_of_it() -> None:
    async with serving() as served:
        await served.world.see(1, D)
        await served.world.see(0, U)
        said = await served.explain()
        assert (said.decision.action, said.decision.row) == ("wait", "8")
        known = as_dict(said.snapshot)
        ranks = {rank.get("dp_rank", 0): rank for rank in known["ranks"]}
        assert ranks[1]["status"] == "ENGINE_STATUS_DEAD"
        assert ranks[1]["source"] == "EVIDENCE_SOURCE_ENGINE_REPORTED"
        assert ranks[0]["status"] == "ENGINE_STATUS_UNHEALTHY"
        assert "source" not in ranks[0]
        assert ("dead_for" in ranks[1], "unhealthy_for" in ranks[0], "dead_for" in ranks[2]) == (True, True, False)
        spent, left = said.snapshot.collecting_for.ToTimedelta(), said.snapshot.collection_left.ToTimedelta()
        assert (spent + left).total_seconds() == pytest.approx(SETTINGS.fault_collection_timeout, abs=1e-3)
        assert said.decision.look_again_in == said.snapshot.collection_left
        assert [each.removed for each in said.participants] == [[1], []]


async def test_hardware_first_is_explained_with_its_faults_and_window() -> None:
    async with serving() as served:
        adapter = FakeAdapter(served.world)
        await adapter.connect()
        await adapter.tell(card(1, 1))
        said = await served.explain()
        assert (said.decision.action, said.decision.row) == ("wait", "3")
        assert said.snapshot.correlation_left == said.decision.look_again_in
        assert not said.snapshot.hardware_noticed
        await served.pause()
        await adapter.tell(card(None, 2, name="strange"))
        mapped, strange = (await served.explain()).snapshot.hardware
        assert (list(mapped.dp_ranks), mapped.mapped, mapped.unhandled) == ([1], True, True)
        assert (mapped.level, mapped.fault.key.npu_name) == (fault_report_pb2.FAULT_LEVEL_L6, "Ascend910-1")
        assert (list(strange.dp_ranks), strange.mapped, strange.unhandled) == ([], False, True)


async def test_with_the_feature_off_the_gate_stands_in_the_way() -> None:
    async with serving(scale_down=False) as served:
        said = await served.explain()
        assert (said.gate.allowed, list(said.gate.reason_codes)) == (False, ["FEATURE_DISABLED"])
        assert "gate: FEATURE_DISABLED" in said.blockers
        assert not said.snapshot.scale_down_enabled


async def test_what_is_not_known_has_no_explanation_no_events_and_takes_no_orders() -> None:
    async with serving() as served:
        for asked in (
            served.explain(9),
            served.events(instance_id=9),
            served.pause(instance_id=9),
            served.resume(instance_id=9, request_id="r-2"),
            served.reconfigure(instance_id=9, request_id="r-3"),
        ):
            with pytest.raises(FtError) as refused:
                await asked
            assert refused.value.reason is Reason.UNKNOWN_INSTANCE


# --- ListEvents ---


async def test_events_say_when_what_and_for_whom() -> None:
    async with serving() as served:
        await served.world.see(1, D)
        page = await served.events(instance_id=1, kinds=[controller_pb2.EVENT_KIND_EVIDENCE])
        (event,) = map(as_dict, page.events)
        assert event.pop("time").endswith("Z")
        assert event.pop("age").endswith("s")
        assert int(event.pop("sequence")) > 0
        assert event == {
            "instance_id": "1",
            "kind": "EVENT_KIND_EVIDENCE",
            "text": "rank 1 is DEAD (ENGINE_REPORTED)",
            "attributes": {
                "rank": "1",
                "status": "dead",
                "source": "engine_reported",
                "engine_incarnation": "engine-1#1.0",
            },
        }


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_join_to_the_whole_while_events_come_and_go(newest_first: bool) -> None:
    async with serving() as served:
        histories = served.world.controller.histories
        for number in range(1_200):
            histories.record(1, EventKind.ALERT, f"alert {number}")
        alerts = [controller_pb2.EVENT_KIND_ALERT]
        whole = await served.events(kinds=alerts, page_size=1_000, newest_first=newest_first)
        seen: list[int] = []
        token = ""
        while True:
            page = await served.events(kinds=alerts, page_size=300, newest_first=newest_first, page_token=token)
            seen += [event.sequence for event in page.events]
            if not (token := page.next_page_token) or len(seen) > 2_000:
                break
            histories.record(1, EventKind.ALERT, "one more, and the oldest goes")
        assert seen == sorted(set(seen), reverse=newest_first)
        kept = {event.sequence for event in whole.events}
        assert len(kept - set(seen)) <= 3  # the oldest that went meanwhile


async def test_long_events_are_fewer_on_a_page() -> None:
    """A page is a message that every client takes."""
    async with serving() as served:
        for number in range(1_000):
            long = {f"attribute-{each}": "x" * 1_000 for each in range(8)}
            served.world.controller.histories.record(1, EventKind.ALERT, f"alert {number}", **long)
        alerts = [controller_pb2.EVENT_KIND_ALERT]
        seen: list[int] = []
        token = ""
        while token or not seen:
            page = await served.events(kinds=alerts, page_size=1_000, page_token=token)
            assert page.ByteSize() < 4 * 1024 * 1024
            seen += [event.sequence for event in page.events]
            token = page.next_page_token
        assert seen == sorted(set(seen))
        assert len(seen) > 900


async def test_events_of_all_instances_are_listed_together_and_those_of_one_alone() -> None:
    async with serving() as served:
        await served.reconfigure()
        await until(lambda: served.world.can_serve(2))
        both = await served.events()
        assert {event.instance_id for event in both.events} == {1, 2}
        one = await served.events(instance_id=2)
        assert {event.instance_id for event in one.events} == {2}
        assert both.next_page_token == ""


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"page_size": -1}, "page_size"),
        ({"page_token": "12"}, "page_token"),
        ({"page_token": "another-life-12"}, "page_token"),
        ({"page_token": "life-1-x"}, "page_token"),
        ({"page_token": "life-1-"}, "page_token"),
        ({"kinds": [0]}, "kinds[0]"),
        ({"kinds": [1, 99]}, "kinds[1]"),
    ],
)
async def test_a_bad_page_of_events_is_refused_by_field(fields: dict[str, Any], path: str) -> None:
    """Among them a token of an earlier Controller, whose sequences mean nothing now."""
    async with serving() as served:
        with pytest.raises(FieldError) as refused:
            await served.events(**fields)
        assert list(refused.value.violations) == [path]


# --- orders ---


async def test_a_pause_holds_decisions_back_and_resuming_takes_them() -> None:
    async with serving() as served:
        assert (await served.pause()).automation_paused
        await served.world.lose(1)
        said = await served.explain()
        assert (said.decision.row, list(said.blockers)) == ("00", ["automation is paused by ann: upgrade of node-1"])
        assert served.world.controller.started == []
        assert not (await served.resume(request_id="r-2")).automation_paused
        await until(lambda: served.world.status().dead_committed == (1,) and served.world.can_serve())
        assert await served.orders() == ["pause automation", "resume automation"]


async def test_an_order_names_who_and_why_in_the_history() -> None:
    async with serving() as served:
        await served.pause(expected_generation=1)
        (event,) = (await served.events(kinds=[controller_pb2.EVENT_KIND_OPERATOR])).events
        assert event.text == "pause automation by ann: upgrade of node-1"
        assert dict(event.attributes) == {
            "order": "pause automation",
            "operator": "ann",
            "reason": "upgrade of node-1",
            "request_id": "r-1",
        }


async def test_the_same_order_again_gets_the_first_answer_and_is_carried_out_once() -> None:
    async with serving() as served:
        first = await served.pause()
        await served.resume(request_id="r-2")
        assert await served.pause() == first
        assert not served.world.status().automation_paused
        answers = await asyncio.gather(*(served.reconfigure(request_id="r-3") for _ in range(5)))
        assert all(answer == answers[0] for answer in answers)
        assert await served.orders() == ["pause automation", "resume automation", "reconfigure"]


async def test_an_id_stands_for_one_order_only() -> None:
    """Not for one with another reason, and not for another kind of order."""
    async with serving() as served:
        await served.pause()
        for again in (served.pause(reason="something else"), served.resume(), served.reconfigure()):
            with pytest.raises(FtError) as refused:
                await again
            assert refused.value.reason is Reason.REQUEST_ID_REUSED
        assert await served.orders() == ["pause automation"]


async def test_what_was_refused_may_be_ordered_again_with_the_same_id() -> None:
    async with serving() as served:
        with pytest.raises(FtError) as refused:
            await served.pause(expected_generation=9)
        assert refused.value.reason is Reason.STALE_GENERATION
        assert refused.value.metadata == {"got": "9", "current": "1"}
        assert (await served.pause(expected_generation=1)).automation_paused


async def test_nobody_acts_without_a_name_and_a_reason() -> None:
    async with serving() as served:
        with pytest.raises(FieldError) as refused:
            await served.reconfigure(operator="", reason="")
        assert list(refused.value.violations) == ["header.operator", "header.reason"]
        assert await served.orders() == []


async def test_a_reconfiguration_is_refused_while_a_strategy_runs() -> None:
    async with serving() as served:
        hold = asyncio.Event()
        served.world.pod(1).hold["guard"] = hold.wait
        await served.world.lose(1)
        await until(lambda: served.world.controller.started)
        with pytest.raises(FtError) as refused:
            await served.reconfigure()
        assert (refused.value.reason, refused.value.metadata) == (
            Reason.STRATEGY_RUNNING,
            {"strategy": "dp_scale_down"},
        )
        hold.set()
        await until(lambda: served.world.status().dead_committed == (1,))


# --- reflection ---


async def test_reflection_shows_every_method_to_grpcurl() -> None:
    server = new_server()
    add_service(server, World().controller)
    async with connected(server) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="motor_ft.v1.ControllerService")
        (answer,) = [answer async for answer in ask(iter([request]), timeout=TIMEOUT)]
    file = FileDescriptorProto.FromString(answer.file_descriptor_response.file_descriptor_proto[0])
    methods = {method.name for service in file.service for method in service.method}
    assert methods == set(controller_pb2.DESCRIPTOR.services_by_name["ControllerService"].methods_by_name)
