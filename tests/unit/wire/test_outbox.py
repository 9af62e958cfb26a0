"""Reports are numbered when sent and kept until acknowledged."""

from motor_ft.wire.outbox import Outbox


def drain(outbox: Outbox[str], now: float = 0.0) -> list[tuple[int, str]]:
    sent = []
    while (entry := outbox.next(now)) is not None:
        sent.append(entry)
    return sent


def outbox(*items: tuple[str, str], limit: int = 8) -> Outbox[str]:
    box = Outbox(limit, "snapshot")
    for key, item in items:
        box.put(key, item)
    return box


def test_what_is_superseded_in_the_queue_never_gets_a_sequence() -> None:
    box = outbox(("rank 1", "unhealthy"), ("rank 2", "dead"), ("rank 1", "healthy"))
    assert drain(box) == [(1, "dead"), (2, "healthy")]


def test_what_was_not_acknowledged_comes_again_as_a_snapshot_of_what_is_now() -> None:
    """Said as it was, what is over by now would be believed, and perhaps acted on, until the snapshot comes."""
    box = outbox(("a", "1"), ("b", "2"), ("c", "3"))
    drain(box)
    box.acknowledged(1)
    box.reconnected()
    assert drain(box, 20.0) == [(4, "snapshot")]
    assert box.unacknowledged_for(21.0) == 1.0
    box.rejected(2, not_before=0.0)
    box.acknowledged(4)
    box.reconnected()
    assert drain(box) == [(5, "snapshot")]


def test_a_snapshot_replaces_what_it_contains() -> None:
    box = outbox(("a", "1"))
    box.request_snapshot()
    box.put("b", "2")
    assert drain(box) == [(1, "snapshot"), (2, "2")]


def test_overflow_becomes_a_snapshot() -> None:
    box = outbox(*((str(number), str(number)) for number in range(9)), limit=8)
    assert drain(box) == [(1, "snapshot")]


def test_no_more_than_the_limit_is_under_way() -> None:
    box = outbox(("a", "1"), ("b", "2"), limit=2)
    drain(box)
    box.put("c", "3")
    assert drain(box) == []
    box.acknowledged(1)
    assert drain(box) == [(3, "3")]


def test_a_rejected_report_gets_a_new_number_after_its_backoff() -> None:
    box = outbox(("a", "1"))
    drain(box)
    box.rejected(1, not_before=5.0)
    assert (drain(box, 4.0), box.due_in(4.0)) == ([], 1.0)
    assert drain(box, 5.0) == [(2, "1")]


def test_a_rejected_report_is_dropped_when_something_newer_says_more() -> None:
    queued = outbox(("a", "old"))
    drain(queued)
    queued.put("a", "new")
    queued.rejected(1, not_before=0.0)
    assert drain(queued) == [(2, "new")]
    sent = outbox(("a", "old"))
    drain(sent)
    sent.put("a", "new")
    drain(sent)
    sent.rejected(1, not_before=0.0)
    assert drain(sent) == []


def test_a_late_rejection_or_an_unknown_one_changes_nothing() -> None:
    box = outbox(("a", "1"))
    drain(box)
    box.acknowledged(1)
    box.rejected(1, not_before=0.0)
    assert drain(box) == []


def test_silence_is_counted_from_the_oldest_sent_report() -> None:
    box = outbox(("a", "1"))
    assert box.unacknowledged_for(100.0) == 0.0
    drain(box, 10.0)
    box.put("b", "2")
    drain(box, 12.0)
    assert box.unacknowledged_for(15.0) == 5.0
    box.acknowledged(1)
    assert box.unacknowledged_for(15.0) == 3.0


def test_what_is_queued_can_be_dropped() -> None:
    box = outbox(("a", "1"), ("b", "2"))
    box.drop("a")
    assert drain(box) == [(1, "2")]
