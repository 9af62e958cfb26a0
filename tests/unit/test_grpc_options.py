"""Options of gRPC: an unknown name is ignored, and what it should have prevented happens after a while."""

from pathlib import Path

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # not in its types

from controller.store.etcd import member
from gateway.mindcluster import clusterd
from motor_ft.wire import channel, server

LIBRARY = Path(cygrpc.__file__).read_bytes()
OPTIONS = {name for module in (server, channel, member, clusterd) for name, _ in module.OPTIONS}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_grpc_knows_every_option_that_it_is_given(name: str) -> None:
    assert name.encode() in LIBRARY
