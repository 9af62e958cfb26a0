"""A disk that is full, for this process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond ``limit`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
