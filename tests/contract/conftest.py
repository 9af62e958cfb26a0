"""One etcd for all tests of a process; each takes a prefix of its own."""

from collections.abc import Iterator

import pytest

from tests.support.etcd import Etcd


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    with Etcd() as etcd:
        yield etcd
