"""The same id gets the first answer, whether it is known already or not yet."""

import asyncio

import pytest

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.answers import FirstAnswers


async def test_the_same_request_gets_the_first_answer() -> None:
    answers = FirstAnswers()
    assert await answers.replay("r1", b"request") is None
    answers.answered("r1", b"first")
    assert await answers.replay("r1", b"request") == b"first"


async def test_the_same_id_with_another_request_is_refused_also_while_the_first_runs() -> None:
    answers = FirstAnswers()
    await answers.replay("r1", b"request")
    with pytest.raises(FtError, match="REQUEST_ID_REUSED"):
        await answers.replay("r1", b"another")
    answers.answered("r1", b"first")
    with pytest.raises(FtError, match="REQUEST_ID_REUSED"):
        await answers.replay("r1", b"another")


async def test_a_repeat_waits_for_the_call_that_runs() -> None:
    answers = FirstAnswers()
    await answers.replay("r1", b"request")
    second = asyncio.create_task(answers.replay("r1", b"request"))
    await asyncio.sleep(0)
    assert not second.done()
    answers.answered("r1", b"first")
    assert await second == b"first"


async def test_after_a_failed_call_exactly_one_of_those_that_wait_runs() -> None:
    answers = FirstAnswers()
    await answers.replay("r1", b"request")
    waiting = [asyncio.create_task(answers.replay("r1", b"request")) for _ in range(2)]
    await asyncio.sleep(0)
    answers.failed("r1")
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [None]
    answers.answered("r1", b"second")
    assert [await task for task in rest] == [b"second"]


async def test_the_oldest_given_answers_are_forgotten() -> None:
    answers = FirstAnswers(limit=2)
    await answers.replay("runs", b"")
    for number in range(3):
        assert await answers.replay(f"r{number}", b"") is None
        answers.answered(f"r{number}", b"answer")
    assert await answers.replay("r2", b"") == b"answer"
    assert await answers.replay("r0", b"") is None


async def test_a_call_that_runs_is_never_forgotten_rather_a_new_one_is_refused() -> None:
    """Else a repeat would run a second time, beside the first."""
    answers = FirstAnswers(limit=1)
    await answers.replay("runs", b"")
    with pytest.raises(FtError) as refused:
        await answers.replay("r1", b"")
    assert refused.value.reason is Reason.OVERLOADED
    answers.failed("runs")
    assert await answers.replay("r1", b"") is None
