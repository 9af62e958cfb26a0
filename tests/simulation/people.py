"""Who is no part of the system: an operator who asks and orders, and a stranger whose commands must all be refused."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc

from motor_ft.model.command import Command, freeze_plan
from motor_ft.model.command import ScaleDownPlan as Plan
from motor_ft.v1 import controller_pb2_grpc, fault_report_pb2_grpc, node_lifecycle_pb2_grpc, node_manager_pb2_grpc
from motor_ft.v1.common_pb2 import (
    ENDPOINT_STATUS_NORMAL,
    ENGINE_STATUS_DIAGNOSING,
    EVIDENCE_SOURCE_ENGINE_REPORTED,
    INSTRUCTION_RETRY,
    INSTRUCTION_SCALE_DOWN,
    ROLE_UNION,
    CommandHeader,
    Endpoint,
    EndpointState,
    EngineObservation,
    Instruction,
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
from motor_ft.v1.fault_report_pb2 import (
    REPORTER_KIND_NODE_MANAGER,
    EngineFault,
    FaultLevel,
    FaultReportRequest,
    Heartbeat,
    Hello,
    Registration,
)
from motor_ft.v1.node_lifecycle_pb2 import RestartEnginesRequest, StopRequest
from motor_ft.v1.node_manager_pb2 import ApplyRequest, FinalizeRequest, GuardRequest, StatusRequest
from motor_ft.wire.convert import duration_to_pb, plan_to_pb
from tests.simulation.console import at_console, at_gateway, by_hand
from tests.simulation.loop import Process
from tests.simulation.machine import Machine
from tests.simulation.scenario import AGAIN, BY_HAND, CONSOLE, GATEWAY, MISFITS, PORTLESS

if TYPE_CHECKING:
    from tests.simulation.pods import SimPod
    from tests.simulation.world import World

TIMEOUT_SEC = 2.0
ATTEMPTS = 60
NOT_NOW = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
LEASE = duration_to_pb(30.0)
NONSENSE = (
    FaultReportRequest(
        sequence=1,
        engine_fault=EngineFault(
            observation=EngineObservation(dp_rank=0, status=ENGINE_STATUS_DIAGNOSING),
            source=EVIDENCE_SOURCE_ENGINE_REPORTED,
        ),
    ),
    FaultReportRequest(heartbeat=Heartbeat(endpoints=[EndpointState(dp_rank=1, status=ENDPOINT_STATUS_NORMAL)])),
)
"""Evidence that is none, and a heartbeat of a rank that is somewhere else."""


def _other(header: CommandHeader, *, epoch: int = 0, generation: int = 0, instance: int = 0) -> CommandHeader:
    """A header that is so much off."""
    return CommandHeader(
        instance_id=header.instance_id + instance,
        request_id=header.request_id,
        controller_epoch=header.controller_epoch + epoch,
        generation=header.generation + generation,
    )


def _header(command: Command) -> CommandHeader:
    return CommandHeader(
        instance_id=command.instance_id,
        request_id=command.request_id,
        controller_epoch=command.epoch,
        generation=command.generation,
    )


def _half(header: CommandHeader) -> CommandHeader:
    """An epoch without a generation."""
    half = _other(header)
    half.ClearField("generation")
    return half


def _changed(plan: Plan, header: CommandHeader) -> ScaleDownPlan:
    """A plan that is one, only not this one."""
    removed = tuple(sorted({*plan.removed, 99}))
    other = freeze_plan(header.instance_id, header.generation, frozenset(removed), dict(plan.survivors))
    return plan_to_pb(other)


def _made_up(pod: "SimPod") -> ScaleDownPlan:
    return ScaleDownPlan(
        survivors=[Survivor(dp_rank=rank, engine_incarnation="x") for rank in pod.ranks], plan_hash="x"
    )


def _apply(
    header: CommandHeader,
    pod: "SimPod",
    *,
    removed: Sequence[int],
    master: str = "10.6.0.2",
    plan_hash: str = "x",
    instruction: Instruction.ValueType = INSTRUCTION_SCALE_DOWN,
) -> ApplyRequest:
    return ApplyRequest(
        header=header,
        instruction=instruction,
        dp_ranks=pod.ranks,
        removed_dp_ranks=removed,
        dp_master_ip=master,
        plan_hash=plan_hash,
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
    "retry that removes": lambda h, pod: _apply(h, pod, removed=[99], instruction=INSTRUCTION_RETRY),
    "unknown rank": lambda h, _: StatusRequest(header=h, dp_ranks=[99]),
}
"""Commands that no leader gives, from the header that it would use."""


def _stay(pod: "SimPod", plan: Plan) -> list[int]:
    return [rank for rank, _ in plan.survivors if rank in pod.ranks]


IN_HIS_NAME: dict[str, Callable[[CommandHeader, "SimPod", Plan], Any]] = {
    "abort that retires": lambda h, pod, _: FinalizeRequest(header=h, retired_dp_ranks=pod.ranks[:1]),
    "commit for another pod": lambda h, _, __: FinalizeRequest(header=h, commit=True, retired_dp_ranks=[99]),
    "commit of a survivor": lambda h, pod, plan: FinalizeRequest(
        header=h, commit=True, retired_dp_ranks=_stay(pod, plan) or [99]
    ),
    "another plan": lambda h, _, plan: GuardRequest(header=h, lease=LEASE, plan=_changed(plan, h)),
    "apply under another plan": lambda h, pod, plan: _apply(h, pod, removed=plan.removed),
    "apply in another generation": lambda h, pod, plan: _apply(
        _other(h, generation=1), pod, removed=plan.removed, plan_hash=plan.plan_hash
    ),
    "removes nobody": lambda h, pod, plan: _apply(h, pod, removed=[], plan_hash=plan.plan_hash),
    "removes whom it tells": lambda h, pod, plan: _apply(h, pod, removed=pod.ranks, plan_hash=plan.plan_hash),
    "removes others": lambda h, pod, plan: _apply(h, pod, removed=[99], plan_hash=plan.plan_hash),
    "names no master": lambda h, pod, plan: _apply(h, pod, removed=[99], master="", plan_hash=plan.plan_hash),
    "retry that moves the store": lambda h, pod, plan: _apply(
        h, pod, removed=[], plan_hash=plan.plan_hash, instruction=INSTRUCTION_RETRY
    ),
}
"""Commands in the name of who holds the guard, under its plan."""


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
            explained = await stub.Explain(ExplainRequest(instance_id=instance_id), timeout=TIMEOUT_SEC)
            hardware = [FaultLevel.Name(each.level) for each in explained.snapshot.hardware]
            self.world.trace("people", f"instance {instance_id}", f"explained: {hardware} {explained.blockers}")
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
        if what in (*CONSOLE, BY_HAND, GATEWAY):
            self._console(pod, what)
        elif what in MISFITS:
            self._begin(self._misfit(pod, what))
        elif what in (*AGAIN, PORTLESS):
            self._begin(self._again(pod, what))
        else:
            self._begin(self._command(pod, what))

    def _console(self, pod: "SimPod", what: str) -> None:
        if pod.local is not None and pod.process is not None and pod.process.alive:
            if what == BY_HAND:
                work = by_hand(pod.local, pod)
            elif what == GATEWAY:
                work = at_gateway(pod)
            else:
                work = at_console(pod.local, pod, next(self._numbers), waits="waits" in what)
            self._begin(work, pod.process)

    async def _again(self, pod: "SimPod", what: str) -> None:
        """The rules say whether that was right, whatever the answer."""
        if (last := self.world.letters.get((pod.address, what.split()[0]))) is None:
            return
        request = last.request
        if what == PORTLESS:
            order = ApplyRequest.FromString(request)
            order.ClearField("dp_store_port")
            request = order.SerializeToString()
        channel: Any = self.world.fabric.channel(pod.address)
        call: Any = channel.unary_unary(last.method, bytes, bytes)
        try:
            await call(request, timeout=TIMEOUT_SEC)
            said = "OK"
        except grpc.aio.AioRpcError as error:
            said = f"{error.code().name} {error.details()}"
        self.world.oracle.facts.counts[f"again {said.split()[0]}"] += 1
        self.world.trace("people", pod.name, f"{what}: {said}")

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
        request = STRANGE[what](header, pod) if what in STRANGE else self._in_his_name(header, pod, what)
        if request is None:
            return
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

    def _in_his_name(self, header: CommandHeader, pod: "SimPod", what: str) -> Any:
        """None when nobody has a name that fits."""
        state = self.world.oracle.facts.states[pod.uid]
        if what == "guard that is late":
            header.request_id = state.ended
            return GuardRequest(header=header, lease=LEASE) if state.ended else None
        guard = state.guard
        if guard is None or guard.plan is None:
            return None
        return IN_HIS_NAME[what](_header(guard.holder), pod, guard.plan)

    async def _misfit(self, pod: "SimPod", what: str) -> None:
        """A pod that cannot be of any instance says Hello, or one that fits to no other of its job."""
        ranks = {"no ranks": [], "outside": [7], "twice": [0, 0]}.get(what, [0])
        wrong = Registration(
            job_name="" if what == "no job" else "job-99",
            model_name="model",
            engine_type="vllm",
            role=ROLE_UNION,
            pod_name="misfit",
            pod_ip=self.machine.name,
            node_manager_address=self.machine.name + ("" if what == "no port" else ":9000"),
            dp_size={"no size": 0, "another size": 3}.get(what, 2),
            tp_size=1,
            endpoints=[Endpoint(dp_rank=rank, ip=self.machine.name, business_port=8000) for rank in ranks],
        )
        right = Registration()
        right.CopyFrom(wrong)
        right.pod_name, right.dp_size = "first", 2
        for address in self.world.controller_addresses:
            channel: Any = self.world.fabric.channel(address)
            try:
                if what in {"another size", "same rank"}:
                    await self._hello(channel, right)
            except (grpc.aio.AioRpcError, TimeoutError):
                continue
            await self._refused(self._hello(channel, wrong, nonsense=what == "nonsense"), f"a pod with {what}")
            await channel.close()

    async def _hello(self, channel: Any, registration: Registration, *, nonsense: bool = False) -> None:
        """Raises TimeoutError when nobody takes it, or what is said then is rejected."""
        hello = Hello(
            kind=REPORTER_KIND_NODE_MANAGER,
            reporter_id=f"misfit-{next(self._numbers)}",
            incarnation="1",
            incarnation_number=1,
            registration=registration,
        )
        stream = fault_report_pb2_grpc.FaultReportServiceStub(channel).FaultReport()
        async with asyncio.timeout(TIMEOUT_SEC):
            await stream.write(FaultReportRequest(hello=hello))
            answer = await stream.read()
            for report in NONSENSE if nonsense and answer is not grpc.aio.EOF else ():
                await stream.write(report)
                answer = await stream.read()
        if answer is grpc.aio.EOF or answer.HasField("not_leader") or answer.HasField("rejected"):
            raise TimeoutError

    async def _refused(self, call: Awaitable[object], text: str) -> None:
        try:
            await call
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            said = (error.code().name, error.details()) if isinstance(error, grpc.aio.AioRpcError) else ("silence", "")
            self.world.oracle.facts.counts[f"strange {said[0]}"] += 1
            self.world.trace("people", text, f"{said[0]} {said[1]}")
        else:
            self.world.oracle.facts.break_rule("strangers are refused", text)

    def _begin(self, work: Coroutine[Any, Any, None], where: Process | None = None) -> None:
        context = (where or self._process).context.copy()
        self.world.loop.create_task(work, name="people", context=context).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.world.oracle.defect({"event": "people", "exc_info": error})
