"""A decode instance whose hardware breaks gets the place of a prefill instance (recovery.md sections 4 and 8)."""

from __future__ import annotations

from dataclasses import replace

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import commands, completions_work, decided
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Shape
from tests.support.cluster.hardware import Hardware

OFF = {**SCALED, "enable_dp_scale_down": False, "scale_p2d_wait_sec": 1.0}


async def test_a_decode_instance_on_broken_hardware_takes_one_of_two_prefill_instances(start: Start) -> None:
    """The prefill instance is stopped first, and the other one is routed to all the time."""
    decode = Shape(pods=((0,),), fault_tolerance=OFF, job="decode", role="decode")
    prefills = [replace(decode, job=f"prefill-{card}", role="prefill", first_card=card) for card in (1, 2)]
    async with start(decode, *prefills) as (cluster, _), Hardware(cluster) as hardware:
        before = {each: (await each.instances())[0] for each in cluster.deployments}
        kept, given = sorted(cluster.others, key=lambda each: before[each].instance_id)
        views = len(await cluster.views())
        hardware.breaks("Ascend910-0", node=0)
        await decided(cluster, "strategy scale_p2d runs")
        for each in (given, cluster):
            await each.serving(after=before[each].instance_id)
            assert (await commands(each, before[each])).keys() == {"Stop"}
        await completions_work(cluster)
        assert [i.instance_id for i in await kept.instances()] == [before[kept].instance_id]
        assert [len(each.pods[0].stops) for each in (kept, given, cluster)] == [0, 1, 1]
        async with cluster.stub() as stub:
            told = await stub.ListEvents(pb.ListEventsRequest(kinds=[pb.EVENT_KIND_COMMAND]), timeout=5)
        assert [event.instance_id for event in told.events] == [before[each].instance_id for each in (given, cluster)]
        sets = [view for view in (await cluster.views())[views:] if view["event"] == "set"]
        assert all(before[kept].instance_id in {instance["id"] for instance in view["instances"]} for view in sets)
