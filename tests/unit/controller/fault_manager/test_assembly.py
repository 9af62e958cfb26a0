"""How pods become an instance, and who may join one (recovery.md sections 2 and 8)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from controller.core.status import InstanceState
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.model.topology import EndpointStatus, FtCapability
from tests.support.world.adapters import Trouble
from tests.support.world.pods import CAPABILITY, TWO_PODS, D, FakePod, H, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime


async def refusal(pod: FakePod) -> FtError:
    with pytest.raises(FtError) as refused:
        await pod.connect()
    return refused.value


async def test_pods_that_come_at_once_open_one_instance() -> None:
    pods = [registration(number, [number - 1], dp_size=6) for number in range(1, 7)]
    async with World(*pods) as world:
        await asyncio.gather(*(pod.connect() for pod in world.pods.values()))
        await world.until(world.can_serve)
        assert [status.instance_id for status in world.controller.board.all()] == [1]
        assert world.coordinator.ranks() == {0, 1, 2, 3, 4, 5}
        assert {pod.state.instance_id for pod in world.pods.values()} == {1}


async def test_a_connection_to_a_pod_stands_before_a_fault_needs_it() -> None:
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        assert world.controller.nodes.connected == [TWO_PODS[0].node_manager_address]


async def test_an_instance_whose_pods_have_not_all_come_is_not_served_and_starts_nothing() -> None:
    async with World(*TWO_PODS, settings=replace(SETTINGS, assemble_timeout=600.0)) as world:
        await world.pod(1).connect()
        await world.see(0, D)
        await world.see(1, U)
        await asyncio.sleep(3 * SETTINGS.fault_collection_timeout)
        assert world.status().state is InstanceState.INITIAL
        assert not world.can_serve()
        assert world.controller.started == []
        assert world.coordinator.held == {}


async def test_a_headless_pod_that_comes_last_belongs_to_the_instance() -> None:
    pods = (
        registration(1, [0], dp_size=2),
        registration(2, [1], dp_size=2),
        registration(3, [], headless=[1], dp_size=2),
    )
    async with World(*pods) as world:
        world.pod(1).ready = False  # an engine is not ready before its headless part is there
        for pod in world.pods.values():
            await pod.connect()
        await world.pod(1).became_ready()
        await world.until(world.can_serve)
        await world.lose(1, among=(0, 1))
        await world.until(lambda: world.status().dead_committed == (1,))
        assert {address for _, address in world.calls("commit")} == set(world.pods)
        assert world.pod(3).state.retired == {1}


async def test_a_pod_of_another_shape_is_refused() -> None:
    async with World(registration(1, [0, 1]), registration(2, [2, 3], dp_size=5)) as world:
        await world.pod(1).connect()
        error = await refusal(world.pod(2))
        assert error.reason is Reason.TOPOLOGY_MISMATCH
        assert "dp_size" in error.message


async def test_a_rank_that_a_connected_pod_has_is_refused() -> None:
    async with World(registration(1, [0, 1]), registration(2, [1, 2, 3])) as world:
        await world.pod(1).connect()
        error = await refusal(world.pod(2))
        assert error.reason is Reason.TOPOLOGY_MISMATCH
        assert "[1]" in error.message


async def test_an_impossible_registration_names_the_field() -> None:
    async with World(replace(TWO_PODS[0], endpoints=())) as world:
        error = await refusal(world.pod(1))
        assert isinstance(error, FieldError)
        assert "registration.endpoints" in error.violations


@pytest.mark.parametrize("capability", [None, replace(CAPABILITY, num_redundant_experts=1)])
async def test_pods_that_do_not_agree_on_what_their_engines_can_serve_but_are_never_scaled_down(
    capability: FtCapability | None,
) -> None:
    pods = (TWO_PODS[0], replace(TWO_PODS[1], capability=capability))
    async with World(*pods) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.can_serve(2))
        gate = world.status().gate
        assert gate is not None
        assert gate.reasons in {("CAPABILITY_MISSING",), ("CAPABILITY_MISMATCH",)}
        assert world.calls("guard") == []


async def test_ready_waits_for_every_pod_and_every_endpoint() -> None:
    async with World(*TWO_PODS) as world:
        world.pod(1).ready = False
        world.pod(2).normal[3] = EndpointStatus.ABNORMAL
        await world.connect()
        await asyncio.sleep(5)
        assert world.status().state is InstanceState.INITIAL
        await world.pod(1).became_ready()
        await asyncio.sleep(5)
        assert world.status().state is InstanceState.INITIAL
        assert world.coordinator.held == {}
        world.pod(2).normal.clear()
        await world.until(world.can_serve)
        assert world.status().state is InstanceState.ACTIVE


async def test_a_pod_that_left_before_ready_is_replaced_by_a_new_one_with_its_ranks() -> None:
    async with World(*TWO_PODS) as world:
        world.pod(1).ready = False
        await world.connect()
        await world.pod(2).disconnect()
        other = world.add(replace(registration(3, [2, 3]), pod_name="pod-2-again"))
        await other.connect()
        await world.pod(1).became_ready()
        await world.until(world.can_serve)
        assert [status.instance_id for status in world.controller.board.all()] == [1]
        assert {pod.pod_name for pod in world.status().pods} == {"pod-1", "pod-2-again"}


async def test_an_instance_is_not_ready_with_a_pod_whose_stream_is_closed() -> None:
    async with World(*TWO_PODS) as world:
        world.pod(1).ready = False
        await world.connect()
        await world.pod(2).disconnect()
        await world.pod(1).became_ready()
        await asyncio.sleep(1)
        assert world.status().state is InstanceState.INITIAL
        await world.pod(2).connect()
        await world.until(world.can_serve)


async def test_a_new_pod_never_joins_a_complete_instance() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.add(registration(3, [0, 1])).connect()
        assert world.pod(3).state.instance_id == 2
        assert len(world.status().pods) == 2


async def test_a_new_pod_never_joins_an_instance_that_was_scaled_down() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(2, 3)
        await world.until(lambda: world.status().phase is Phase.SCALED_DOWN_RUNNING)
        await world.add(registration(3, [2, 3])).connect()
        assert world.pod(3).state.instance_id == 2
        await world.until(lambda: world.controller.board.get(2))
        assert world.status(2).state is InstanceState.INITIAL
        assert world.coordinator.ranks() == {0, 1}


async def test_a_node_manager_that_started_again_rejoins_its_instance() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pod(2)
        await pod.disconnect()
        pod.restart_node_manager()
        await pod.connect()
        assert pod.state.instance_id == 1
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,))
        assert len(world.controller.board.all()) == 1


async def test_a_node_manager_that_comes_back_at_another_port_is_commanded_there() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pods.pop("10.0.0.2:9000")
        await pod.disconnect()
        pod.restart_node_manager()
        pod.registration = replace(pod.registration, node_manager_address="10.0.0.2:9999")
        world.pods[pod.address] = pod
        await pod.connect()
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,))
        view = world.coordinator.held[1]
        assert [served.node_manager_port for served in view.pods] == [9000, 9999]


async def test_a_pod_that_comes_back_with_other_ranks_is_refused() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pod(2)
        await pod.disconnect()
        pod.registration = replace(pod.registration, endpoints=pod.registration.endpoints[:1])
        error = await refusal(pod)
        assert error.reason is Reason.TOPOLOGY_MISMATCH
        assert len(world.status().pods[1].endpoints) == 2


async def test_an_older_start_of_a_pod_is_refused() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pod(2)
        await pod.disconnect()
        pod.restart_node_manager()
        await pod.connect()
        await pod.disconnect()
        pod.number -= 1
        error = await refusal(pod)
        assert error.reason is Reason.STALE_INCARNATION
        assert error.metadata == {"got": "1", "current": "2"}


async def test_faults_before_ready_are_its_baseline_until_they_clear_and_return() -> None:
    async with World(*TWO_PODS) as world:
        world.pod(1).ready = False
        await world.connect()
        await world.see(1, D)
        await world.pod(1).became_ready()
        await world.until(world.can_serve)
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == []
        loaded = await world.store.load()
        assert loaded.identities[1].record.baseline == (1,)
        await world.see(1, H)
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,))


async def test_an_engine_that_ends_just_before_ready_is_not_forgotten() -> None:
    """Its pod has not had its next heartbeat when the last pod becomes ready: the instance waits for another engine."""
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        world.pod(1).normal[1] = EndpointStatus.ABNORMAL  # with the next heartbeat
        await asyncio.sleep(1)
        await world.pod(1).exit(1)
        await world.pod(2).connect()
        await asyncio.sleep(2 * SETTINGS.heartbeat_ttl)
        assert await world.living() == set()
        world.pod(1).boot()
        await world.pod(1).connect()
        await world.until(world.can_serve)
        assert world.controller.started == []


async def test_a_fault_while_ready_is_written_is_no_baseline() -> None:
    """What READY knew is what is stored: a death that comes meanwhile is not lost."""
    async with World(*TWO_PODS) as world:
        world.store.script["identity"] = Trouble.NOT_WRITTEN
        await world.connect()
        await world.until(lambda: "identity" not in world.store.script)
        await world.pod(1).exit(1)
        for rank in (0, 2, 3):
            await world.see(rank, U)
        await world.until(lambda: world.status().dead_committed == (1,))


@pytest.mark.parametrize("trouble", [Trouble.NOT_WRITTEN, Trouble.ANSWER_LOST])
@pytest.mark.parametrize("record", ["identity", Phase.NORMAL])
async def test_ready_is_reached_whatever_happens_to_its_writes(record: str, trouble: Trouble) -> None:
    async with World(*TWO_PODS) as world:
        world.store.script[record] = trouble
        await world.serve()
        loaded = await world.store.load()
        assert loaded.identities[1].record.ready
        assert loaded.runtimes[1].record.generation == 1


async def test_nothing_is_published_before_ready_is_stored() -> None:
    async with World(*TWO_PODS) as world:
        world.store.down = True
        await world.connect()
        await asyncio.sleep(30)
        world.controller.publisher.kick()
        assert world.coordinator.held == {}
        world.store.down = False
        await world.until(world.can_serve)


async def test_an_assembly_that_everybody_has_left_is_given_up_at_its_deadline() -> None:
    settings = replace(SETTINGS, assemble_timeout=57.5)  # not a time at which it would look anyway
    async with World(*TWO_PODS, settings=settings) as world:
        await world.pod(1).connect()
        await world.pod(1).disconnect()
        await asyncio.sleep(settings.assemble_timeout - 0.01)
        assert world.status().state is InstanceState.INITIAL
        await asyncio.sleep(0.02)
        assert world.status().state is InstanceState.DELETED
        assert world.observed.forgotten == [1]
        await world.connect()
        await world.until(lambda: world.can_serve(2))


async def test_nobody_joins_an_assembly_that_is_being_given_up() -> None:
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        await world.pod(1).disconnect()
        world.store.script["remove"] = Trouble.NOT_WRITTEN
        await world.until(lambda: not world.store.script)
        await world.connect()
        await world.until(lambda: world.can_serve(2))
        assert world.status().state is InstanceState.DELETED


async def test_a_pod_of_an_instance_that_is_being_replaced_is_refused() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script["bury"] = Trouble.NOT_WRITTEN
        for number, ranks in ((3, [0, 1]), (4, [2, 3])):
            await world.add(registration(number, ranks)).connect()
        await world.until(lambda: not world.store.script)
        assert (await refusal(world.pod(1))).reason is Reason.STALE_INCARNATION
        assert len(world.controller.board.all()) == 2


async def test_an_assembly_that_is_not_complete_in_time_is_given_up_and_begun_anew() -> None:
    """Its streams end, also those of pods that are there all the time; these come again, to another instance."""
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        await asyncio.sleep(SETTINGS.assemble_timeout - 0.1)
        assert world.status().state is InstanceState.INITIAL
        assert world.pod(1).rejected == []
        await asyncio.sleep(0.2)
        assert world.status().state is InstanceState.DELETED
        await world.until(lambda: world.pod(1).state.instance_id == 2)
        assert [error.reason for error in world.pod(1).rejected] == [Reason.STALE_INCARNATION]
        await world.pod(2).connect()
        await world.until(lambda: world.can_serve(2))


async def test_an_assembly_whose_pods_have_all_come_may_take_its_time_to_be_ready() -> None:
    """Large models load for long: nothing is won by another number."""
    async with World(*TWO_PODS) as world:
        world.pod(2).ready = False
        await world.connect()
        await asyncio.sleep(3 * SETTINGS.assemble_timeout)
        await world.pod(2).became_ready()
        await world.until(world.can_serve)


async def test_an_assembly_that_lost_a_pod_has_its_whole_time_again() -> None:
    async with World(*TWO_PODS) as world:
        world.pod(2).ready = False
        await world.connect()
        await asyncio.sleep(3 * SETTINGS.assemble_timeout)
        await world.pod(2).disconnect()
        await asyncio.sleep(SETTINGS.assemble_timeout - 0.1)
        assert world.status().state is InstanceState.INITIAL
        await asyncio.sleep(0.2)
        assert world.status().state is InstanceState.DELETED


async def test_an_assembly_that_everybody_has_left_is_forgotten() -> None:
    async with World(*TWO_PODS, settings=replace(SETTINGS, assemble_timeout=600.0)) as world:
        await world.pod(1).connect()
        await world.pod(1).disconnect()
        await asyncio.sleep(SETTINGS.heartbeat_ttl_other - 0.1)
        assert world.status().state is InstanceState.INITIAL
        await asyncio.sleep(0.2)
        assert world.status().state is InstanceState.DELETED


async def test_an_inactive_instance_whose_pods_all_speak_is_never_forgotten() -> None:
    """Its engines are the business of evidence and of the pods themselves."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.pod(1).normal[1] = EndpointStatus.ABNORMAL
        await asyncio.sleep(3 * SETTINGS.heartbeat_ttl_other)
        assert world.status().state is InstanceState.INACTIVE
        assert world.controller.started == []
        del world.pod(1).normal[1]
        await world.until(lambda: world.status().state is InstanceState.ACTIVE)


async def test_ready_of_a_newer_instance_drops_the_older_one_of_its_job() -> None:
    async with World(*TWO_PODS, registration(5, [0], job="other", dp_size=1)) as world:
        await world.serve()
        await world.until(lambda: world.can_serve(2))
        for number, ranks in ((3, [0, 1]), (4, [2, 3])):
            await world.add(registration(number, ranks)).connect()
        await world.until(lambda: world.can_serve(3))
        await world.until(lambda: world.status(1).state is InstanceState.DELETED)
        assert set(world.coordinator.held) == {2, 3}
        assert await world.living() == {2, 3}
        error = await refusal(world.pod(1))
        assert error.reason is Reason.STALE_INCARNATION
        assert "replaced" in error.message
        assert world.can_serve(2)


async def test_a_stream_of_a_replaced_instance_is_not_heard_any_more() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        for number, ranks in ((3, [0, 1]), (4, [2, 3])):
            await world.add(registration(number, ranks)).connect()
        await world.until(lambda: world.status(1).state is InstanceState.DELETED)
        with pytest.raises(FtError) as refused:
            await world.pod(1).see(0, D)
        assert refused.value.reason is Reason.STALE_INCARNATION


async def test_a_strategy_of_a_superseded_instance_never_starts() -> None:
    """Its transaction fails after the newer instance is READY: the fallback is not needed any more."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        committing, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            committing.set()
            await go_on.wait()

        world.pod(1).hold["commit"] = wait
        world.pod(1).refuses["commit"] = FtError(Reason.STALE_REQUEST_ID, "somebody else holds the guard")
        await world.lose(1)
        await committing.wait()
        for number, ranks in ((3, [0, 1]), (4, [2, 3])):
            await world.add(registration(number, ranks)).connect()
        await world.until(lambda: world.can_serve(2))
        go_on.set()
        await world.until(lambda: world.status(1).state is InstanceState.DELETED)
        assert world.observed.strategies == [("dp_scale_down", "failed")]
        assert world.controller.started == ["dp_scale_down"]
        assert world.stops == []
