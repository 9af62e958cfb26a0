"""What is known of the hardware while a part of what tells it is away."""

from __future__ import annotations

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import decided
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.cluster.hardware import Hardware

FIRST, SECOND = (f"L6 80E18402 on Ascend910-{card} of node-0 (ranks [{card}])" for card in (0, 1))
PATIENT = {**SCALED, "hardware_ft_correlation_window_sec": 600.0, "heartbeat_ttl_sec": 30.0}
"""A pod that comes back late to the next Controller is waited for."""
DOUBT = "[hardware evidence is degraded: "


async def only(cluster: Cluster, *faults: str) -> None:
    """Exactly these are known, each once, and nothing is in doubt."""

    def holds(instance: pb.Instance) -> bool:
        named = [fault for fault in (FIRST, SECOND) if fault in instance.last_decision]
        return named == list(faults) and DOUBT not in instance.last_decision

    await cluster.until(holds, f"has only {faults} and no doubt")
    assert await cluster.metric("motor_ft_hardware_faults") == len(faults)
    assert await cluster.metric("motor_ft_hardware_problems") == 0
    assert await cluster.metric("motor_ft_hardware_adapters") == 1


async def test_faults_outlive_every_part_that_tells_of_them(start: Start) -> None:
    """Each is away once: what was known is kept and in doubt, and afterwards nothing is lost, doubled or new."""
    async with start(Shape(pods=((0, 1),), fault_tolerance=PATIENT)) as (cluster, _), Hardware(cluster) as hardware:
        hardware.breaks("Ascend910-1", node=0)
        await only(cluster, SECOND)

        await hardware.clusterd.stop()
        await decided(cluster, SECOND, DOUBT, "clusterd-query: ", "clusterd-stream: ")
        assert await cluster.metric("motor_ft_hardware_problems") == 2
        await hardware.clusterd.start()
        await only(cluster, SECOND)

        hardware.kubernetes.refusal = (503, "")
        hardware.kubernetes.cut()
        await decided(cluster, SECOND.replace(")", ", not confirmed now)"), DOUBT, "cm-device: ", "node-ready: ")
        hardware.kubernetes.refusal = None
        await only(cluster, SECOND)

        hardware.kubernetes.cut()
        hardware.breaks("Ascend910-0", node=0)
        hardware.kubernetes.forget()  # so that the watch, which would go on from before, is refused with 410
        await only(cluster, FIRST, SECOND)

        assert hardware.adapter is not None
        await hardware.adapter.kill()
        await decided(cluster, FIRST, SECOND, DOUBT, "adapter adapter is gone, its faults are kept")
        hardware.heals("Ascend910-0", node=0)
        await hardware.start_adapter()
        await only(cluster, SECOND)

        await cluster.kill_controller()
        await cluster.start_controller()
        await only(cluster, SECOND)

        (instance,) = await cluster.instances()
        assert (instance.instance_id, instance.generation, instance.phase) == (1, 1, pb.PHASE_NORMAL)
        assert await cluster.applies() == []
