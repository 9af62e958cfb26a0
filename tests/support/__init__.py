"""Faithful fakes, real servers on port 0 and helpers that the tests share."""
