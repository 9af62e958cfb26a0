"""Vocabulary of engines: wire values, and what makes a change worth a report."""

from dataclasses import replace

from motor_ft.model.engine import (
    EngineObservation,
    EngineStatus,
    EvidenceSource,
    FtState,
    Instruction,
    Problem,
)

SEEN = EngineObservation(1, EngineStatus.UNHEALTHY, "e1", observation=5)


def test_wire_values_are_those_of_the_engines() -> None:
    assert [*EngineStatus][:4] == ["healthy", "unhealthy", "dead", "diagnosing"]
    assert [*FtState] == ["", "recovering", "failed"]
    assert [*Instruction] == ["scale_down", "retry"]


def test_a_later_reading_of_the_same_state_is_no_change() -> None:
    assert replace(SEEN, observation=6, detail="text for people").content() == SEEN.content()


def test_every_field_of_the_engine_makes_a_change() -> None:
    changes = (
        replace(SEEN, status=EngineStatus.HEALTHY),
        replace(SEEN, incarnation="other"),
        replace(SEEN, ft_state=FtState.RECOVERING),
        replace(SEEN, fault_info="RuntimeError"),
        replace(SEEN, last_ft_request_id="a"),
        replace(SEEN, ft_error="failed"),
        replace(SEEN, mask=(0, 1)),
        replace(SEEN, problem=Problem.PROTOCOL),
    )
    assert all(changed.content() != SEEN.content() for changed in changes)


def test_a_process_exit_is_stronger_than_the_engines_word_and_that_than_silence() -> None:
    assert sorted(EvidenceSource, key=lambda source: source.strength, reverse=True) == [
        EvidenceSource.PROCESS_EXIT,
        EvidenceSource.ENGINE_REPORTED,
        EvidenceSource.STATUS_UNREACHABLE,
    ]
