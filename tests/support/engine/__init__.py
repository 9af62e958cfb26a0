"""A faithful fake of an engine group, built from engine-contract.md section 2."""

from tests.support.engine.config import FAST, Dialect, GroupConfig, Timings
from tests.support.engine.fake_group import FakeGroup

__all__ = ["FAST", "Dialect", "FakeGroup", "GroupConfig", "Timings"]
