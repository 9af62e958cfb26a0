"""Starts are counted durably, so that the newer of two incarnations is known whatever clocks say."""

from pathlib import Path

import pytest

from gateway.mindcluster.starts import count_start
from motor_ft.wire.config import ConfigError


def test_every_start_has_the_next_number(tmp_path: Path) -> None:
    assert [count_start(tmp_path / "state") for _ in range(3)] == [1, 2, 3]


def test_a_counter_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    count_start(tmp_path)
    (tmp_path / "mindcluster-starts").write_text("many")
    with pytest.raises(ConfigError, match=r"state_dir: .*mindcluster-starts"):
        count_start(tmp_path)
    with pytest.raises(ConfigError, match="state_dir"):
        count_start(tmp_path / "mindcluster-starts")
