"""Every RPC of every service: whatever comes, the answer is OK or a reason of the catalog, and the server goes on."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from motor_ft.model.errors import Reason
from motor_ft.wire.channel import MAX_MESSAGE_BYTES
from motor_ft.wire.policy import POLICIES
from tests.fuzz.conftest import NothingCrashed
from tests.fuzz.generators import fuzz, spoilt
from tests.fuzz.protobuf import changed, messages
from tests.fuzz.surfaces import Answer, Surface, controller, gateway, node_manager

HEALTH = "/grpc.health.v1.Health/Check"
SERVERS = ["controller", "node_manager", "gateway"]
OWN_WORDS = {grpc.StatusCode.NOT_FOUND: HEALTH}
"""What the health protocol says itself."""


@pytest.fixture(params=SERVERS)
async def surface(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Surface]:
    servers: dict[str, AbstractAsyncContextManager[Surface]] = {
        "controller": controller(),
        "node_manager": node_manager(tmp_path),
        "gateway": gateway(),
    }
    async with servers[request.param] as surface:
        yield surface


def anything(good: Message) -> SearchStrategy[bytes]:
    """A message of this type, most of them near to a good one, or other bytes."""
    any_message: SearchStrategy[Any] = changed(good) | changed(good) | messages(type(good))
    whole = any_message.map(lambda message: message.SerializeToString())
    return whole | spoilt(good.SerializeToString()) | st.binary(max_size=8)


def check(method: str, answer: Answer) -> None:
    """It is OK, or a refusal whose reason does not change, and whose text is ours."""
    if answer.code is not grpc.StatusCode.OK and OWN_WORDS.get(answer.code) != method:
        assert answer.reason in set(Reason) - {Reason.INTERNAL}, answer
    assert not any(trace in answer.text for trace in ("Traceback", "Unexpected <", 'File "', "Error parsing")), answer


@given(data=st.data())
@fuzz(6)
async def test_every_call_is_answered_and_what_is_refused_changes_nothing(
    surface: Surface, nothing_crashed: NothingCrashed, data: st.DataObject
) -> None:
    method = data.draw(st.sampled_from(sorted(surface.good)), label="method")
    request = data.draw(anything(surface.good[method]), label="request")
    before = surface.kept()
    answer = await surface.ask(method, request)
    check(method, answer)
    if answer.reason == Reason.INVALID_REQUEST:
        assert surface.kept() == before
    assert (await surface.ask(HEALTH, b"")).code is grpc.StatusCode.OK
    nothing_crashed()


async def test_a_message_over_the_limit_is_refused_and_the_server_goes_on(surface: Surface) -> None:
    for method in surface.good:
        before = surface.kept()
        answer = await surface.ask(method, bytes(MAX_MESSAGE_BYTES + 1))
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED, method
        assert surface.kept() == before
        assert (await surface.ask(HEALTH, b"")).code is grpc.StatusCode.OK


async def test_every_method_is_asked(tmp_path: Path) -> None:
    """But for the one that only a Coordinator serves."""
    async with controller() as first, node_manager(tmp_path) as second, gateway() as third:
        assert {*first.good, *second.good, *third.good} == POLICIES.keys() - {"/motor_ft.v1.CoordinatorService/Refresh"}
