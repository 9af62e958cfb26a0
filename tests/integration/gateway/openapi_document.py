"""The OpenAPI document as tests use it: which routes it has, and what fits its schemas."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema_rs import Draft202012Validator

from gateway.rest.server import document

DOCUMENT: Mapping[str, Any] = json.loads(document())


def operations() -> set[tuple[str, str]]:
    """Every method and path."""
    return {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}


def request_schema(method: str, path: str) -> Any:
    """Of the body."""
    body = DOCUMENT["paths"][path][method.lower()]["requestBody"]
    return _resolve(body["content"]["application/json"]["schema"])


def response_schema(method: str, path: str, status: int) -> Any:
    """Of the body; raises KeyError for a status that the document does not name."""
    response = _resolve(DOCUMENT["paths"][path][method.lower()]["responses"][str(status)])
    return response["content"]["application/json"]["schema"]


def errors(schema: Any, value: object) -> Iterator[str]:
    """What of ``value`` does not fit ``schema``."""
    validator = Draft202012Validator(schema | {"components": DOCUMENT["components"]})
    return (str(error) for error in validator.iter_errors(value))


def _resolve(schema: Any) -> Any:
    while "$ref" in schema:
        found: Any = DOCUMENT
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema
