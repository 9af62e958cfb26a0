"""Who is no part of the system: an operator who asks and orders, and a stranger whose commands must all be refused."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc

from motor_ft.v1 import controller_pb2_grpc, fault_report_pb2_grpc, node_lifecycle_pb2_grpc, node_manager_pb2_grpc
from motor_ft.v1.common_pb2 import (
    INSTRUCTION_RETRY,
    INSTRUCTION_SCALE_DOWN,
    CommandHeader,
    Endpoint,
    OperatorHeader,
    ScaleDownPlan,
    Survivor,
)
from motor_ft.v1.controller_pb2 import (
    ExplainRequest,
    GetInstanceRequest,
    ListEventsRequest,
    PauseAutomationRequest,
    ReconfigureRequest,
    ResumeAutomationRequest,
)
from motor_ft.v1.fault_report_pb2 import REPORTER_KIND_NODE_MANAGER, FaultReportRequest, Hello, Registration
from motor_ft.v1.node_lifecycle_pb2 import RestartEnginesRequest, StopRequest
from motor_ft.v1.node_manager_pb2 import ApplyRequest, FinalizeRequest, GuardRequest, StatusRequest
from motor_ft.wire.convert import duration_to_pb
from tests.simulation.machine import Machine
from tests.simulation.scenario import MISFITS

if TYPE_CHECKING:
    from tests.simulation.pods import SimPod
    from tests.simulation.world import World

TIMEOUT_SEC = 2.0
ATTEMPTS = 60
NOT_NOW = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
LEASE = duration_to_pb(30.0)


def _other(header: CommandHeader, *, epoch: int = 0, generation: int = 0, instance: int = 0) -> CommandHeader:
    """A header that is so much off."""
    return CommandHeader(
        instance_id=header.instance_id + instance,
        request_id=header.request_id,
        controller_epoch=header.controller_epoch + epoch,
        generation=header.generation + generation,
    )


def _half(header: CommandHeader) -> CommandHeader:
    """An epoch without a generation."""
    half = _other(header)
    half.ClearField("generation")
    return half


def _made_up(pod: "SimPod") -> ScaleDownPlan:
    return ScaleDownPlan(
        survivors=[Survivor(dp_rank=rank, engine_incarnation="x") for rank in pod.ranks], plan_hash="x"
    )


def _apply(header: CommandHeader, pod: "SimPod", *, removed: Sequence[int], master: str = "10.6.0.2") -> ApplyRequest:
    return ApplyRequest(
        header=header,
        instruction=INSTRUCTION_SCALE_DOWN if master else INSTRUCTION_RETRY,
        dp_ranks=pod.ranks,
        removed_dp_ranks=removed,
        dp_master_ip=master,
    )


STRANGE: dict[str, Callable[[CommandHeader, "SimPod"], Any]] = {
    "guard of a former leader": lambda h, _: GuardRequest(header=_other(h, epoch=-1), lease=LEASE),
    "stop of a former leader": lambda h, _: StopRequest(header=_other(h, epoch=-1)),
    "relaunch of a former leader": lambda h, _: RestartEnginesRequest(header=_other(h, epoch=-1), timeout=LEASE),
    "guard of a former generation": lambda h, _: GuardRequest(header=_other(h, generation=-1), lease=LEASE),
    "half fenced": lambda h, _: GuardRequest(header=_half(h), lease=LEASE),
    "no lease": lambda h, _: GuardRequest(header=h, lease=duration_to_pb(0.0)),
    "endless lease": lambda h, _: GuardRequest(header=h, lease=duration_to_pb(3601.0)),
    "another instance": lambda h, _: GuardRequest(header=_other(h, instance=1000), lease=LEASE),
    "made-up plan": lambda h, pod: GuardRequest(header=h, lease=LEASE, plan=_made_up(pod)),
    "foreign commit": lambda h, pod: FinalizeRequest(header=h, commit=True, retired_dp_ranks=pod.ranks[:1]),
    "foreign apply": lambda h, pod: _apply(h, pod, removed=[99]),
    "apply to the removed": lambda h, pod: _apply(h, pod, removed=pod.ranks[:1]),
    "apply that removes nobody": lambda h, pod: _apply(h, pod, removed=[]),
    "retry that removes": lambda h, pod: _apply(h, pod, removed=[99], master=""),
    "unknown rank": lambda h, _: StatusRequest(header=h, dp_ranks=[99]),
}
"""Commands that no leader gives, from the header that it would use."""


class People:
    """One process, from which both call."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.machine = Machine("10.6.0.1")
        self._numbers = count(1)
        self._process = world.process("people", self.machine)
        self._paused: set[int] = set()

    # --- the operator ---

    def order(self, job: int, what: str) -> None:
        """``pause``, ``resume`` or ``reconfigure`` the newest instance of a job, or ``ask`` all about it."""
        if what == "pause":
            self._paused.add(job)
        self._begin(self._ask(job) if what == "ask" else self._order(job, what))

    def calm(self) -> None:
        """Whatever was paused goes on."""
        for job in sorted(self._paused):
            self.order(job, "resume")

    async def _order(self, job: int, what: str) -> None:
        request_id = f"order-{next(self._numbers)}"

        async def call(stub: Any, instance_id: int) -> None:
            header = OperatorHeader(
                instance_id=instance_id, request_id=f"{request_id}-{instance_id}", operator="ann", reason="simulated"
            )
            match what:
                case "pause":
                    await stub.PauseAutomation(PauseAutomationRequest(header=header), timeout=TIMEOUT_SEC)
                case "resume":
                    await stub.ResumeAutomation(ResumeAutomationRequest(header=header), timeout=TIMEOUT_SEC)
                case _:
                    await stub.Reconfigure(ReconfigureRequest(header=header), timeout=TIMEOUT_SEC)

        await self._leader(job, call, patient=what == "resume")

    async def _ask(self, job: int) -> None:
        async def call(stub: Any, instance_id: int) -> None:
            await stub.Explain(ExplainRequest(instance_id=instance_id), timeout=TIMEOUT_SEC)
            await stub.GetInstance(GetInstanceRequest(instance_id=instance_id), timeout=TIMEOUT_SEC)
            token = ""
            for _ in range(3):
                request = ListEventsRequest(instance_id=instance_id, page_size=5, page_token=token)
                token = (await stub.ListEvents(request, timeout=TIMEOUT_SEC)).next_page_token
            everything = ListEventsRequest(newest_first=bool(job), page_size=50)
            await stub.ListEvents(everything, timeout=TIMEOUT_SEC)

        await self._leader(job, call, patient=False)

    async def _leader(self, job: int, call: Callable[[Any, int], Awaitable[None]], *, patient: bool) -> None:
        """Until a Controller has answered; ``patient`` also when the instance has just been replaced."""
        for _ in range(ATTEMPTS):
            facts = self.world.oracle.facts
            mine = [key for key in facts.identities if facts.job_of(key) == job]
            for address in self.world.controller_addresses if mine else ():
                channel: Any = self.world.fabric.channel(address)
                stub = controller_pb2_grpc.ControllerServiceStub(channel)
                try:
                    await call(stub, max(mine))
                except grpc.aio.AioRpcError as error:
                    if error.code() in NOT_NOW or patient:
                        continue
                return
            await asyncio.sleep(1.0)

    # --- the stranger ---

    def strange(self, pod: "SimPod", what: str) -> None:
        """Something that no leader would say, now."""
        work = self._misfit(pod, what) if what in MISFITS else self._command(pod, what)
        self._begin(work)

    async def _command(self, pod: "SimPod", what: str) -> None:
        facts = self.world.oracle.facts
        fence = facts.fences.get(pod.uid)
        mine = [key for key in facts.identities if facts.job_of(key) == pod.job]
        if fence is None or not fence.epoch or not mine:
            return
        instance_id = max(mine)
        generation = fence.generations.get(instance_id, (0, 0))[1]
        header = CommandHeader(
            instance_id=instance_id,
            request_id=f"strange-{next(self._numbers)}",
            controller_epoch=fence.epoch,
            generation=generation,
        )
        request = STRANGE[what](header, pod)
        channel: Any = self.world.fabric.channel(pod.address)
        nodes = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        lives = node_lifecycle_pb2_grpc.NodeLifecycleServiceStub(channel)
        method: Any = {
            GuardRequest: nodes.Guard,
            StatusRequest: nodes.Status,
            ApplyRequest: nodes.Apply,
            FinalizeRequest: nodes.Finalize,
            StopRequest: lives.Stop,
            RestartEnginesRequest: lives.RestartEngines,
        }[type(request)]
        await self._refused(method(request, timeout=TIMEOUT_SEC), f"{what} at {pod.name}")

    async def _misfit(self, pod: "SimPod", what: str) -> None:
        """A pod that cannot be of any instance says Hello."""
        ranks = {"no ranks": [], "outside": [7], "twice": [0, 0]}.get(what, [0])
        port = "" if what == "no port" else ":9000"
        registration = Registration(
            job_name="" if what == "no job" else "job-99",
            pod_name="misfit",
            node_manager_address=f"{self.machine.name}{port}",
            dp_size=0 if what == "no size" else 2,
            endpoints=[Endpoint(dp_rank=rank, ip=self.machine.name, business_port=8000) for rank in ranks],
        )
        hello = Hello(
            kind=REPORTER_KIND_NODE_MANAGER,
            reporter_id=f"misfit-{next(self._numbers)}",
            incarnation="1",
            incarnation_number=1,
            registration=registration,
        )

        async def say(address: str) -> None:
            channel: Any = self.world.fabric.channel(address)
            stream = fault_report_pb2_grpc.FaultReportServiceStub(channel).FaultReport()
            async with asyncio.timeout(TIMEOUT_SEC):
                await stream.write(FaultReportRequest(hello=hello))
                answer = await stream.read()
            if answer is grpc.aio.EOF or answer.HasField("not_leader"):
                raise TimeoutError
            await channel.close()

        for address in self.world.controller_addresses:
            await self._refused(say(address), f"a pod with {what}")

    async def _refused(self, call: Awaitable[object], text: str) -> None:
        try:
            await call
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else "silence"
            self.world.oracle.facts.counts[f"strange {code}"] += 1
        else:
            self.world.oracle.facts.break_rule("strangers are refused", text)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.world.loop.create_task(work, name="people", context=self._process.context.copy())
