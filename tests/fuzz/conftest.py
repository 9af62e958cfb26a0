"""What no example may do."""

from collections.abc import Callable, Iterator

import pytest
import structlog

NothingCrashed = Callable[[], None]


@pytest.fixture
def nothing_crashed() -> Iterator[NothingCrashed]:
    """Called after an example, it fails when anything was logged with an exception: a task, a call or a step."""
    with structlog.testing.capture_logs() as lines:

        def check() -> None:
            crashes = [line for line in lines if line.get("exc_info")]
            lines.clear()
            assert crashes == []

        yield check
        check()
