"""The OpenAPI document as tests use it: which routes it has, and what fits its schemas."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.rest.server import document

DOCUMENT: Mapping[str, Any] = json.loads(document())
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    "$ref", "type", "enum", "oneOf", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
    "uniqueItems", "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "description",
}  # fmt: skip


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


def errors(schema: Any, value: object, where: str = "$") -> Iterator[str]:
    """What of ``value`` does not fit ``schema``; raises KeyError for a keyword that this reader does not know."""
    schema = _resolve(schema)
    if unknown := schema.keys() - _KNOWN:
        raise KeyError(f"{where}: {unknown}")
    if "oneOf" in schema:
        fitting = [choice for choice in schema["oneOf"] if not list(errors(choice, value, where))]
        if len(fitting) != 1:
            yield f"{where}: fits {len(fitting)} of {len(schema['oneOf'])}"
    if "type" in schema and not _has_type(schema["type"], value):
        yield f"{where}: {value!r} is no {schema['type']}"
    elif "enum" in schema and not any(type(value) is type(one) and value == one for one in schema["enum"]):
        yield f"{where}: {value!r} is none of {schema['enum']}"
    elif isinstance(value, dict):
        yield from _object_errors(schema, value, where)
    elif isinstance(value, list):
        yield from _array_errors(schema, value, where)
    elif isinstance(value, str | int | float):
        yield from _scalar_errors(schema, value, where)


def _object_errors(schema: Any, value: dict[str, object], where: str) -> Iterator[str]:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", []):
        if name not in value:
            yield f"{where}.{name}: missing"
    for name, item in value.items():
        if name in properties:
            yield from errors(properties[name], item, f"{where}.{name}")
        elif more is False:
            yield f"{where}.{name}: unknown"
        elif more is not True:
            yield from errors(more, item, f"{where}.{name}")


def _array_errors(schema: Any, value: list[object], where: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{where}: {len(value)} items"
    if schema.get("uniqueItems") and len({json.dumps(item) for item in value}) != len(value):
        yield f"{where}: not unique"
    for index, item in enumerate(value):
        yield from errors(schema.get("items", {}), item, f"{where}[{index}]")


def _scalar_errors(schema: Any, value: str | float, where: str) -> Iterator[str]:
    if isinstance(value, str):
        good = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        good = good and re.search(schema.get("pattern", ""), value) is not None
        good = good and not ("pattern" in schema and value.endswith("\n"))  # Python's $ is laxer than JSON Schema's
    else:
        good = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        good = good and not ("exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"])
    if not good:
        yield f"{where}: {value!r} is out of bounds"


def _has_type(names: str | list[str], value: object) -> bool:
    wanted = [names] if isinstance(names, str) else names
    if isinstance(value, bool):
        return "boolean" in wanted
    return any(isinstance(value, _TYPES[name]) for name in wanted)


def _resolve(schema: Any) -> Any:
    while "$ref" in schema:
        found: Any = DOCUMENT
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema
