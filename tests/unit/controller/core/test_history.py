"""A bounded history from which a storm of one kind pushes nothing else out, and pages that stay in place."""

import itertools
from collections.abc import Collection, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.history import Event, EventKind, History, page


def event(sequence: int, kind: EventKind = EventKind.EVIDENCE, instance_id: int = 1) -> Event:
    return Event(sequence, instance_id, kind, float(sequence), 0.0, f"event {sequence}", {})


def history(*kinds: EventKind, limit: int = 100) -> History:
    """Events from sequence 1 on."""
    filled = History(limit)
    for sequence, kind in enumerate(kinds, 1):
        filled.add(event(sequence, kind))
    return filled


def sequences(
    *histories: History,
    kinds: Collection[EventKind] = frozenset(EventKind),
    after: int | None = None,
    newest_first: bool = False,
    size: int = 100,
) -> list[int]:
    found = page(histories, kinds, after=after, newest_first=newest_first, size=size)
    return [each.sequence for each in found]


def test_a_storm_of_evidence_pushes_out_only_evidence() -> None:
    filled = history(EventKind.OPERATOR, EventKind.DECISION, *[EventKind.EVIDENCE] * 1_000, limit=10)
    assert sequences(filled) == [1, 2, *range(995, 1_003)]


@given(st.lists(st.sampled_from(EventKind)), st.integers(1, 20))
def test_the_newest_events_are_kept_up_to_the_limit(kinds: list[EventKind], limit: int) -> None:
    kept = sequences(history(*kinds, limit=limit))
    assert len(kept) == min(len(kinds), limit)
    assert kept == sorted(kept)


def test_an_instance_that_tells_only_one_thing_keeps_its_last_events() -> None:
    assert sequences(history(*[EventKind.STAGE] * 5, limit=3)) == [3, 4, 5]


def test_only_the_asked_kinds_are_listed() -> None:
    filled = history(EventKind.PHASE, EventKind.ALERT, EventKind.PHASE, EventKind.LIFE)
    assert sequences(filled, kinds={EventKind.PHASE, EventKind.LIFE}) == [1, 3, 4]


@pytest.mark.parametrize(("newest_first", "expected"), [(False, [1, 2, 3, 4]), (True, [4, 3, 2, 1])])
def test_several_instances_are_listed_by_sequence(newest_first: bool, expected: list[int]) -> None:
    one, two = History(), History()
    for sequence in (1, 4):
        one.add(event(sequence, instance_id=1))
    for sequence in (2, 3):
        two.add(event(sequence, EventKind.PHASE, instance_id=2))
    assert sequences(one, two, newest_first=newest_first) == expected


def pages(filled: History, newest_first: bool) -> Iterator[list[int]]:
    after = None
    while found := sequences(filled, after=after, newest_first=newest_first, size=2):
        after = found[-1]
        yield found


def test_pages_miss_nothing_that_stays_while_events_come_and_go() -> None:
    """Between two pages the oldest goes and a new one comes."""
    filled = history(*[EventKind.PHASE] * 6, limit=6)
    newer = itertools.count(7)
    seen: list[int] = []
    for found in itertools.islice(pages(filled, newest_first=False), 5):
        seen += found
        filled.add(event(next(newer), EventKind.PHASE))
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_pages_of_the_newest_first_do_not_repeat_when_newer_ones_come() -> None:
    filled = history(*[EventKind.PHASE] * 6, limit=100)
    newer = itertools.count(7)
    seen: list[int] = []
    for found in pages(filled, newest_first=True):
        seen += found
        filled.add(event(next(newer), EventKind.PHASE))
    assert seen == [6, 5, 4, 3, 2, 1]
