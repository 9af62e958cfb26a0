"""What a story is, and what most of them have in common."""

from typing import NamedTuple

import msgspec

from tests.simulation.scenario import Config, Event, Job, Pod, Scenario

DEATH = Event(10.0, "worker_kill", "0/1")
"""Of rank 1, noticed a second later."""


class Story(NamedTuple):
    """``says`` is in its trace, verbose, which shows that it has come to what it is told for."""

    scenario: Scenario
    says: str


def story(says: str, *events: Event, job: Job | None = None, config: Config | None = None, **rest: object) -> Story:
    """One instance of four ranks in two pods, in which these things happen."""
    plain = Scenario(
        0,
        (job or Job(pods=(Pod((0, 1)), Pod((2, 3)))),),
        tuple(sorted(events, key=lambda event: event.at)),
        config or Config(),
        calm_at=40.0,
    )
    return Story(msgspec.structs.replace(plain, **rest), says)


def then(kind: str, who: str = "", after: str = "", **rest: object) -> Event:
    """It happens when a recovery that begins after the ninth second comes to this moment."""
    return msgspec.structs.replace(Event(9.0, kind, who, after=after), **rest)
