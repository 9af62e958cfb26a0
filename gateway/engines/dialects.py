"""All dialects, and how the one that an engine speaks is found without telling it anything."""

from collections.abc import Mapping
from http import HTTPStatus

from gateway.engines.client import EngineHttp
from gateway.engines.dialect import Dialect, UnreadableError
from gateway.engines.sglang import Sglang
from gateway.engines.vllm_0_33 import Vllm033
from gateway.engines.vllm_no_ft import VllmNoFt
from gateway.engines.vllm_v1 import VllmV1
from motor_ft.model.engine import Problem

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (VllmV1(), Vllm033())}
CONFIGURABLE: Mapping[str, Dialect] = {**DIALECTS, VllmNoFt.name: VllmNoFt(), Sglang.name: Sglang()}
"""Two are not found out: routes that are missing may as well be a mistake, which must fail closed, and SGLang has those
of ``vllm_v1``: taken for that it cannot be read, for it answers about all ranks."""


async def detect(http: EngineHttp, url: str, timeout: float) -> Dialect:
    """GET every status path of the engine at ``url``; ``timeout`` in seconds for each.

    Raises UnreadableError unless exactly one path answers 200 and the others 404.
    """
    return choose(
        {name: (await http.get(url + dialect.status_path, timeout)).status for name, dialect in DIALECTS.items()}
    )


def choose(statuses: Mapping[str, int]) -> Dialect:
    """The dialect that answers, given the HTTP status of every dialect's path; raises UnreadableError as above."""
    speaking = [name for name, status in statuses.items() if status == HTTPStatus.OK]
    silent = [name for name, status in statuses.items() if status == HTTPStatus.NOT_FOUND]
    if len(speaking) == 1 and len(speaking) + len(silent) == len(statuses):
        return DIALECTS[speaking[0]]
    if len(speaking) > 1:
        raise UnreadableError(
            Problem.PROTOCOL, f"the engine speaks {' and '.join(speaking)}; configure the dialect that is meant"
        )
    if len(silent) == len(statuses):
        raise UnreadableError(
            Problem.HTTP_STATUS, "HTTP 404 on every status path; was the engine started with fault tolerance on?"
        )
    found = ", ".join(f"HTTP {status} from {DIALECTS[name].status_path}" for name, status in statuses.items())
    raise UnreadableError(
        Problem.HTTP_STATUS,
        f"no way to tell the dialect: {found}; configure it, and the token file if the engine has a key",
    )
