"""The ways to bring an instance back, built with the adapters of one Controller."""

from collections.abc import Awaitable, Callable
from functools import partial

from controller.core.case import Builder, Case
from controller.core.decision import Action
from controller.core.history import EventKind
from controller.core.ports import Clock, NodeManagers, Recorder, ServingPublisher, Strategy
from controller.fault_manager.environment import Settings
from controller.strategies.dp_scale_down import DpScaleDownStrategy
from controller.strategies.engine_relaunch import EngineRelaunch, RelaunchTimes
from controller.strategies.fast_recovery import FastRecoveryStrategy
from controller.strategies.instance_reconfiguration import InstanceReconfiguration, ReconfigurationTimes
from controller.strategies.partial_loss import PartialLoss
from controller.strategies.scale_p2d import ScaleP2D, ScaleP2DTimes
from controller.strategies.token_reinference import TokenReinference
from controller.strategies.transaction import TransactionStrategy
from motor_ft.model.command import Command


def recoveries(
    settings: Settings,
    *,
    epoch: Callable[[], int],
    nodes: NodeManagers,
    publisher: ServingPublisher,
    clock: Clock,
    on_stage: Callable[[str, float], None],
    recorder: Recorder,
) -> dict[Action, Builder]:
    """Every strategy that is switched on; what is missing here is never decided for."""

    def transaction(kind: type[TransactionStrategy]) -> Builder:
        return lambda case: kind(
            case.spec,
            epoch=epoch(),
            nodes=nodes,
            publisher=publisher,
            runtime=case.runtime,
            clock=clock,
            on_stage=_staged(case, on_stage, recorder),
        )

    def instance_reconfiguration(case: Case, before: Callable[[], Awaitable[None]] | None = None) -> Strategy:
        return InstanceReconfiguration(
            instance_id=case.spec.instance_id,
            request_id=case.spec.request_id,
            addresses=[pod.node_manager_address for pod in case.spec.pods],
            reason=case.reason,
            times=_reconfiguration_times(settings),
            replaced=case.replaced,
            epoch=epoch,
            nodes=nodes,
            publisher=publisher,
            runtime=case.runtime,
            clock=clock,
            before=before,
        )

    def partial_loss(case: Case) -> Strategy:
        command = Command(case.spec.instance_id, case.spec.request_id, epoch(), case.runtime.record.generation)
        return PartialLoss(command, case.dissolve, case.reason, nodes, retry_interval=settings.limits.poll_interval)

    def engine_relaunch(case: Case) -> Strategy:
        return EngineRelaunch(
            case.spec,
            reason=case.reason,
            times=_relaunch_times(settings),
            epoch=epoch,
            engines=case.engines,
            nodes=nodes,
            publisher=publisher,
            runtime=case.runtime,
            clock=clock,
        )

    def scale_p2d(case: Case) -> Strategy:
        return ScaleP2D(
            case.spec.instance_id,
            times=ScaleP2DTimes(settings.limits.request_timeout, settings.scale_p2d_wait, _give_up(settings)),
            recovered=case.recovered,
            spare=case.spare,
            rebuild=partial(instance_reconfiguration, case),
            publisher=publisher,
            runtime=case.runtime,
        )

    built = {
        Action.DP_SCALE_DOWN: transaction(DpScaleDownStrategy),
        Action.PARTIAL_LOSS: partial_loss,
        Action.INSTANCE_RECONFIGURATION: instance_reconfiguration,
    }
    if settings.enable_token_reinference:
        built[Action.TOKEN_REINFERENCE] = lambda _: TokenReinference(settings.token_reinference_timeout)
    if settings.fast_recovery:
        built[Action.FAST_RECOVERY] = transaction(FastRecoveryStrategy)
    if settings.enable_engine_relaunch:
        built[Action.ENGINE_RELAUNCH] = engine_relaunch
    if settings.enable_scale_p2d:
        built[Action.SCALE_P2D] = scale_p2d
    return built


def _staged(case: Case, on_stage: Callable[[str, float], None], recorder: Recorder) -> Callable[[str, float], None]:
    """What a strategy tells of its stages, for the metrics and for the history of the instance."""

    def stage_done(stage: str, seconds: float) -> None:
        on_stage(stage, seconds)
        said = {"stage": stage, "seconds": f"{seconds:.3f}", "request_id": case.spec.request_id}
        recorder.record(case.spec.instance_id, EventKind.STAGE, f"{stage} after {seconds:.3f} s", **said)

    return stage_done


def _reconfiguration_times(settings: Settings) -> ReconfigurationTimes:
    return ReconfigurationTimes(
        request_timeout=settings.limits.request_timeout,
        retry_interval=settings.limits.poll_interval,
        give_up=_give_up(settings),
        assemble_timeout=settings.assemble_timeout,
    )


def _give_up(settings: Settings) -> float:
    """By then a pod that nobody reaches is missed, and what it may have been guarded for is over."""
    return settings.heartbeat_ttl + settings.limits.lease


def _relaunch_times(settings: Settings) -> RelaunchTimes:
    return RelaunchTimes(
        request_timeout=settings.limits.request_timeout,
        poll_interval=settings.engine_relaunch_poll_interval,
        timeout=settings.engine_relaunch_timeout,
        misses=settings.engine_relaunch_misses,
    )
