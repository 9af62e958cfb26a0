"""The REST routes, on top of a real NodeManager and a real Controller, asked what the document allows and forbids."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from gateway.rest.node_manager import PREFIX
from tests.fuzz.conftest import NothingCrashed
from tests.fuzz.generators import fuzz
from tests.fuzz.test_rest import ROUTES
from tests.integration.gateway.openapi_document import DOCUMENT, operations
from tests.integration.gateway.rest_fakes import Rest
from tests.integration.gateway.test_rest_node_manager import FENCE

CHECKS = {
    "not_a_server_error": {"expected-statuses": ["2xx", "4xx", 502]},  # 502: what a NodeManager refuses
    "positive_data_acceptance": {"enabled": False},  # for its meaning anything may be refused; see what is asserted
    "negative_data_rejection": {"expected-statuses": [400]},
}
SCHEMA = schemathesis.openapi.from_dict(dict(DOCUMENT), config=schemathesis.Config.from_dict({"checks": CHECKS}))
OPERATIONS = sorted(operations())
REFUSING = [each for each in OPERATIONS if each != ("GET", "/openapi.json")]
"""Those with anything in a request that could be wrong."""


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False  # no proxy, whatever the environment says
        yield session


async def ask(rest: Rest, session: requests.Session, case: Case[Any]) -> schemathesis.Response:
    """Raise an error unless the answer is one that the document has for this request."""
    response = await asyncio.to_thread(case.call, rest.url, session)
    case.validate_response(response)
    return response


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@given(data=st.data())
@fuzz()
async def test_what_the_document_allows_is_judged_by_its_meaning(
    rest: Rest, session: requests.Session, nothing_crashed: NothingCrashed, method: str, path: str, data: st.DataObject
) -> None:
    await rest.post(f"{PREFIX}/guard", ROUTES[f"{PREFIX}/guard"])
    case = data.draw(SCHEMA[path][method].as_strategy())
    if good := ROUTES.get(path):
        names = good.keys() - FENCE.keys() - data.draw(st.sets(st.sampled_from(sorted(good))), label="left as they are")
        assert isinstance(case.body, dict)
        if case.body.get("controller_epoch") is not None:
            names |= FENCE.keys()  # after a higher epoch every example would be refused for its own
        case.body |= {name: good[name] for name in names}
    response = await ask(rest, session, case)
    assert '"reason":"INVALID_REQUEST' not in response.text
    nothing_crashed()


@pytest.mark.parametrize(("method", "path"), REFUSING)
@given(data=st.data())
@fuzz()
async def test_what_the_document_forbids_is_refused(
    rest: Rest, session: requests.Session, nothing_crashed: NothingCrashed, method: str, path: str, data: st.DataObject
) -> None:
    strategy = SCHEMA[path][method].as_strategy(generation_mode=GenerationMode.NEGATIVE)
    response = await ask(rest, session, data.draw(strategy))
    assert response.status_code == 400 or method == "GET"  # ask() judges queries, and lets unknown fields pass
    nothing_crashed()
