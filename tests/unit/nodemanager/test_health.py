"""Which change of a rank is reported, and as what evidence."""

import pytest

from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource, FtState, Problem
from motor_ft.model.topology import EndpointStatus
from nodemanager.core.health import DeathReport, EngineReport, RankHealth, checked, die, observe

START = RankHealth(1, "e1")


def reading(
    status: EngineStatus = EngineStatus.HEALTHY, problem: Problem = Problem.NONE, ft_state: FtState = FtState.NONE
) -> EngineObservation:
    return EngineObservation(1, status, "e1", ft_state=ft_state, problem=problem)


def unread(problem: Problem) -> EngineObservation:
    return reading(EngineStatus.UNKNOWN, problem)


def see(*readings: EngineObservation, threshold: int = 1) -> tuple[RankHealth, list[EngineReport | None]]:
    """Fold readings in, one each second from second 1."""
    health, reports = START, []
    for second, each in enumerate(readings, start=1):
        health, report = observe(health, each, float(second), threshold)
        reports.append(report)
    return health, reports


HEALTHY = reading()
UNHEALTHY = reading(EngineStatus.UNHEALTHY)
DEAD = reading(EngineStatus.DEAD)
SILENT = unread(Problem.UNREACHABLE)


def test_a_state_is_reported_once_and_healthy_again_too() -> None:
    _, reports = see(HEALTHY, HEALTHY, UNHEALTHY, UNHEALTHY, HEALTHY)
    assert [report and report.observation.status for report in reports] == [
        EngineStatus.HEALTHY,
        None,
        EngineStatus.UNHEALTHY,
        None,
        EngineStatus.HEALTHY,
    ]


def test_recovering_then_failed_is_a_new_report() -> None:
    recovering = reading(EngineStatus.UNHEALTHY, ft_state=FtState.RECOVERING)
    failed = reading(EngineStatus.UNHEALTHY, ft_state=FtState.FAILED)
    _, reports = see(UNHEALTHY, recovering, failed)
    assert all(reports)
    assert {report.since for report in reports if report} == {1.0}, "the rank is unhealthy since second 1"


@pytest.mark.parametrize(
    ("seen", "source"),
    [
        (DEAD, EvidenceSource.ENGINE_REPORTED),
        (UNHEALTHY, EvidenceSource.ENGINE_REPORTED),
        (SILENT, EvidenceSource.STATUS_UNREACHABLE),
        (reading(EngineStatus.DIAGNOSING), None),
        (HEALTHY, None),
        (unread(Problem.HTTP_STATUS), None),
        (unread(Problem.PROTOCOL), None),
        (unread(Problem.IDENTITY), None),
        (unread(Problem.LOCAL), None),
    ],
)
def test_only_the_engine_and_its_own_socket_are_evidence(
    seen: EngineObservation, source: EvidenceSource | None
) -> None:
    """A 404, a gateway that is gone, a wrong id: degraded, never DEAD."""
    _, reports = see(seen)
    assert reports[0] is not None
    assert reports[0].source is source


def test_unreachable_counts_consecutive_failures_up_to_the_threshold() -> None:
    _, reports = see(SILENT, SILENT, HEALTHY, SILENT, SILENT, SILENT, threshold=3)
    sources = [report and report.source for report in reports]
    assert sources == [None, None, None, None, None, EvidenceSource.STATUS_UNREACHABLE]
    assert reports[5] is not None
    assert reports[5].since == 4.0


@pytest.mark.parametrize("problem", [Problem.LOCAL, Problem.HTTP_STATUS, Problem.PROTOCOL, Problem.IDENTITY])
def test_a_reading_that_tells_nothing_leaves_the_endpoint_as_it_was(problem: Problem) -> None:
    assert see(HEALTHY, unread(problem))[0].status is EndpointStatus.NORMAL
    assert see(HEALTHY, DEAD, unread(problem))[0].status is EndpointStatus.ABNORMAL


def test_an_endpoint_is_initial_until_it_was_healthy_once() -> None:
    assert see(SILENT)[0].status is EndpointStatus.INITIAL
    assert see(HEALTHY)[0].status is EndpointStatus.NORMAL
    assert see(HEALTHY, SILENT)[0].status is EndpointStatus.ABNORMAL
    assert see(HEALTHY, SILENT, HEALTHY)[0].status is EndpointStatus.NORMAL


def test_healthy_does_not_undo_a_process_exit() -> None:
    first, second = DeathReport(1, "e1", 10, "", 1.0), DeathReport(1, "e1", 11, "", 2.0)
    health, _ = observe(die(die(see(HEALTHY)[0], first), second), HEALTHY, 3.0, 1)
    assert (health.status, health.deaths) == (EndpointStatus.ABNORMAL, (first, second))


def test_the_validator_lets_only_the_asked_rank_and_engine_through() -> None:
    assert checked(HEALTHY, 1, "e1") is HEALTHY
    for rank, incarnation in ((2, "e1"), (1, "e2")):
        refused = checked(HEALTHY, rank, incarnation)
        assert (refused.rank, refused.incarnation) == (rank, incarnation)
        assert (refused.status, refused.problem) == (EngineStatus.UNKNOWN, Problem.IDENTITY)
