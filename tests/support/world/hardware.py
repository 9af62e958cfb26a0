"""An adapter of hardware faults as a Controller meets it, and pods whose cards it knows."""

from collections.abc import Iterable
from dataclasses import replace

from controller.core.ports import Attachment
from controller.core.reports import AdapterHello, HardwareCleared, HardwareReport, HardwareSnapshot
from motor_ft.model.hardware import FaultLevel, HardwareFault, SourceState
from motor_ft.model.topology import Device, Registration
from tests.support.world.world import World

SOURCE = "cm-device"
STARTING = SourceState(SOURCE, "", "has not answered yet")
WORKING = SourceState(SOURCE, "", "")


def with_cards(pod: Registration) -> Registration:
    """Every rank of the pod uses the card of its number."""
    endpoints = (replace(endpoint, devices=(Device(str(endpoint.rank)),)) for endpoint in pod.endpoints)
    return replace(pod, endpoints=tuple(endpoints))


def card(
    rank: int | None, node: int, *, level: FaultLevel = FaultLevel.L6, code: str = "80E18402", name: str | None = None
) -> HardwareFault:
    """A fault of the card of a rank, of a card with another name, or of the whole node (None)."""
    npu_name = name if name is not None else "" if rank is None else f"Ascend910-{rank}"
    return HardwareFault(f"node-{node}", npu_name, code, level, "SeparateNPU", sources=(SOURCE,))


class FakeAdapter:
    """One adapter; its faults are those that it has told."""

    def __init__(self, world: World, name: str = "adapter") -> None:
        self._world = world
        self.name = name
        self.number = 1
        self.stream: Attachment[HardwareReport] | None = None
        self._sequence = 0

    async def connect(self, *faults: HardwareFault, sources: Iterable[SourceState] = (WORKING,)) -> None:
        """Hello, and a snapshot of these faults."""
        hello = AdapterHello(self.name, f"{self.name}#{self.number}", self.number, None)
        self.stream = await self._world.manager.attach_adapter(hello)
        await self.snapshot(*faults, sources=sources)

    async def restart(self, *faults: HardwareFault, sources: Iterable[SourceState] = (WORKING,)) -> None:
        """A new process of the same adapter."""
        self.disconnect()
        self.number, self._sequence = self.number + 1, 0
        await self.connect(*faults, sources=sources)

    def disconnect(self) -> None:
        """The stream ends."""
        assert self.stream is not None
        self.stream.detach()

    async def snapshot(self, *faults: HardwareFault, sources: Iterable[SourceState] = (WORKING,)) -> None:
        await self.tell(HardwareSnapshot(faults, tuple(sources)))

    async def clear(self, fault: HardwareFault) -> None:
        await self.tell(HardwareCleared(fault.key))

    async def tell(self, *reports: HardwareReport) -> None:
        """With the next sequences."""
        assert self.stream is not None
        for report in reports:
            self._sequence += 1
            await self.stream.deliver(self._sequence, report)
