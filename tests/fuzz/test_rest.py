"""The REST routes, on top of a real NodeManager and a real Controller: every answer is one that the document has."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from yarl import URL

from gateway.rest.node_manager import PREFIX
from tests.fuzz.conftest import NothingCrashed
from tests.fuzz.generators import encoded, fuzz, spoilt
from tests.integration.gateway.openapi_document import errors, operations, response_schema
from tests.integration.gateway.rest_fakes import Rest
from tests.integration.gateway.test_rest_controller import FAULT, REPORT, STATUS
from tests.integration.gateway.test_rest_node_manager import BODIES, FENCE

ROUTES: dict[str, Any] = {f"{PREFIX}/{route}": body for route, body in BODIES.items()}
ROUTES |= {path: body | FENCE for path, body in ROUTES.items() if not path.endswith("/status")}
ROUTES[REPORT] = FAULT | {"pod_ip": "10.0.0.1", "node_manager_port": 9000}
"""Bodies that the pods behind the fixture take for good ones."""
JSON = "application/json"
MEDIA = st.sampled_from([JSON, JSON, JSON, JSON, "text/plain", "application/json; charset=latin-1", "multipart/x", "é"])
LONG = b'{"x":"' + b"x" * 70_000 + b'"}'


def bodies(good: Any) -> SearchStrategy[bytes]:
    return st.one_of(spoilt(encoded(good)), st.just(LONG), st.binary(max_size=20))


def check(method: str, path: str, status: int, text: bytes) -> None:
    """An answer of the document, or of no route at all; never of a failure of ours."""
    body = json.loads(text)
    if (method, path) in operations():
        assert list(errors(response_schema(method, path, status), body)) == [], (status, body)
        assert status != 500
    else:
        assert status in {404, 405}
        assert body.keys() == {"error"}
        assert body["error"].keys() == {"reason", "message"}


@given(path=st.sampled_from(sorted(ROUTES)), media=MEDIA, data=st.data())
@fuzz(2)
async def test_whatever_is_posted_is_answered_as_the_document_says(
    rest: Rest, nothing_crashed: NothingCrashed, path: str, media: str, data: st.DataObject
) -> None:
    body = data.draw(bodies(ROUTES[path]), label="body")
    async with rest.session.post(rest.url + path, data=body, headers={"Content-Type": media}) as answer:
        check("POST", path, answer.status, await answer.read())
    nothing_crashed()


PATHS = st.sampled_from([*ROUTES, STATUS, "/openapi.json", "/", "/x", STATUS + "/", "/%ff", "/%00", "/%C3%A9", "/../x"])
QUERIES = st.sampled_from(["", "instance_id=1", "instance_id=99", "instance_id=%ff", "instance_id=", "instance_id=1e9"])
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])


@given(method=METHODS, path=PATHS, query=QUERIES | st.text(max_size=5).map(lambda text: f"instance_id={text}"))
@fuzz(3)
async def test_every_path_and_method_is_answered_in_json(
    rest: Rest, nothing_crashed: NothingCrashed, method: str, path: str, query: str
) -> None:
    url = URL(f"{rest.url}{path}", encoded=True).with_query(query)
    async with rest.session.request(method, url) as answer:
        if method != "HEAD":
            check(method, path, answer.status, await answer.read())
    nothing_crashed()


@given(text=spoilt(b"POST /controller/report_software_fault?x=\xff HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"))
@fuzz(1)
async def test_bytes_that_are_no_request_cost_only_their_connection(
    rest: Rest, nothing_crashed: NothingCrashed, text: bytes
) -> None:
    url = URL(rest.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    assert b"Traceback" not in answer
    assert not answer.startswith(b"HTTP/1.1 500")
    assert (await rest.get("/openapi.json"))[0] == 200
    nothing_crashed()
