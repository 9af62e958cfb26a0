"""Clusters of real processes for the acceptance matrix; every test leaves an evidence bundle."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Evidence, Shape
from tests.support.engine import FakeGroup
from tests.support.etcd import Etcd


@asynccontextmanager
async def in_process(*shapes: Shape) -> AsyncIterator[list[Shape]]:
    """The shapes with engines of this process, which cost no start and outlive their pods until they are rebuilt."""
    async with AsyncExitStack() as stack:
        groups = [await stack.enter_async_context(FakeGroup(shape.dp_size, shape.dialect)) for shape in shapes]
        yield [
            replace(shape, group=group, urls=tuple(group.url(rank) for rank in range(shape.dp_size)))
            for shape, group in zip(shapes, groups, strict=True)
        ]


Start = Callable[..., AbstractAsyncContextManager[tuple[Cluster, Evidence]]]
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Folder of one cluster; kept, and its path printed, when the test fails or with --keep-evidence."""
    path = Path(tempfile.mkdtemp(prefix=f"motor-ft-{request.node.name[:40]}-".replace("[", "-").replace("]", "")))
    yield path
    if request.node.stash.get(FAILED, False) or request.config.getoption("--keep-evidence"):
        sys.stdout.write(f"evidence: {path}\n")
    else:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """One for all clusters of a process; each has a prefix of its own."""
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def start(folder: Path) -> Start:
    """Start a cluster of one instance, or of several shapes beside each other, recording evidence."""

    @asynccontextmanager
    async def started(*shapes: Shape) -> AsyncIterator[tuple[Cluster, Evidence]]:
        async with Cluster(folder, *shapes) as cluster, Evidence(cluster) as evidence:
            yield cluster, evidence

    return started
