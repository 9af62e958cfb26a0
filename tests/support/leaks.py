"""Pytest plugin: a test that leaves an asyncio task or a process behind fails.

A process is a test's own when it is a child or bears this run's mark in its environment, so that one whose
parent was killed is found too. What is still ending gets a moment; the rest is ended here, so that one leak
fails one test.
"""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

GRACE_SEC = 2.0
"""How long something that was told to end may take to be gone."""

_MARK = "MOTOR_FT_TEST_RUN"


def pytest_configure() -> None:
    """Mark this process's environment; every process that a test starts inherits it."""
    os.environ[_MARK] = str(os.getpid())
    # Who only looks for the current loop must not make one, as Python 3.11 would: nobody would close it.
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test when a process or, for an async test, a task outlives the test's fixtures."""
    before = set(psutil.pids())
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("_no_leaked_tasks")
    yield
    new = [psutil.Process(pid) for pid in set(psutil.pids()) - before if _is_ours(pid)]
    _, late = psutil.wait_procs(new, timeout=GRACE_SEC)
    leaked = {process: _command(process) for process in late if _is_ours(process.pid)}
    for process in leaked:
        process.kill()
    if leaked:
        psutil.wait_procs(leaked)
        pytest.fail("the test left processes behind:\n" + "\n".join(leaked.values()), pytrace=False)


@pytest.fixture
async def _no_leaked_tasks() -> AsyncIterator[None]:
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, leaked = await asyncio.wait(tasks, timeout=GRACE_SEC)
        if leaked:
            found = "\n".join(f"{task.get_name()}: {task.get_coro()}" for task in leaked)
            pytest.fail(f"the test left tasks running:\n{found}", pytrace=False)


def _is_ours(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.ppid() == os.getpid() or process.environ().get(_MARK) == str(os.getpid())
    except psutil.Error:  # it ended meanwhile, or belongs to another user
        return False


def _command(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:  # it ended only now: late all the same
        return f"{process.pid}: (gone)"
