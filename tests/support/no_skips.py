"""Pytest plugin: a test that does not run, or is expected to fail, is a failure with the reason it gave."""

from collections.abc import Generator

import pytest


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    expected_failure: str | None = getattr(report, "wasxfail", None)
    if report.outcome == "skipped" or expected_failure is not None:
        kind = "skipped" if expected_failure is None else f"marked xfail ({expected_failure})"
        report.outcome = "failed"
        report.longrepr = f"no test may be skipped or expected to fail; this one was {kind}: {report.longrepr}"
        report.__dict__.pop("wasxfail", None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip or an expected failure of a test into a failure."""
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure."""
    report = yield
    _refuse(report)
    return report
