"""Log lines are JSON objects that carry the identities bound around them."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from motor_ft.wire.log import bound, configure_logging, get_logger


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_identities_are_in_every_line_inside_and_in_none_outside(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    log = get_logger("part")
    with bound(request_id="r1", instance_id=7):
        log.info("inside", rank=3)
        logging.getLogger("library").warning("also %s", "inside")
    log.info("outside")
    inside, library, outside = map(json.loads, capsys.readouterr().err.splitlines())
    assert inside.items() >= {
        "event": "inside", "rank": 3, "request_id": "r1", "instance_id": 7, "level": "info", "logger": "part"
    }.items()  # fmt: skip
    assert library.items() >= {"event": "also inside", "request_id": "r1", "logger": "library"}.items()
    assert "request_id" not in outside


def test_an_exception_is_one_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        get_logger("part").exception("failed", obj=object())
    (line,) = capsys.readouterr().err.splitlines()
    assert "RuntimeError: boom" in json.loads(line)["exception"]


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="warning")
    get_logger("part").info("quiet")
    assert capsys.readouterr().err == ""


def test_text_for_people_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(json=False)
    with bound(request_id="r1"):
        get_logger("part").info("hello")
    line = capsys.readouterr().err
    assert "hello" in line
    assert "request_id=r1" in line
