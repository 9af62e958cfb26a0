"""Request bodies. Commands with unknown fields are refused: a misspelt epoch would be an unfenced command."""

from decimal import Decimal
from typing import Annotated, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from motor_ft.model.command import MAX_LEASE_SEC, MAX_REQUEST_ID_LENGTH, Command, valid_request_id
from motor_ft.model.errors import FieldError
from motor_ft.wire.decoding import NOT_JSON

T = TypeVar("T")
Rank = Annotated[int, Meta(ge=0, lt=2**31)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Port = Annotated[int, Meta(ge=1, lt=2**16)]


class StatusBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of ``status``."""

    endpoint_ids: Annotated[list[Rank], Meta(min_length=1)]


class CommandBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the three mutating routes have in common; without epoch and generation it is unfenced."""

    request_id: str
    controller_epoch: Number | None = None
    generation: Number | None = None

    def command(self, instance_id: int) -> Command:
        """The command's identity; raises FieldError."""
        if not valid_request_id(self.request_id):
            raise FieldError({"request_id": f"must be 1 to {MAX_REQUEST_ID_LENGTH} printable ASCII characters"})
        if (self.controller_epoch is None) != (self.generation is None):
            raise FieldError({"controller_epoch": "comes with generation, or neither of them"})
        return Command(instance_id, self.request_id, self.controller_epoch, self.generation)


class GuardBody(CommandBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of ``guard``."""

    lease_sec: Annotated[float, Meta(gt=0, le=MAX_LEASE_SEC)]


class ApplyParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all survivors must agree on."""

    removed_dp_ranks: Annotated[list[Rank], Meta(min_length=1)]
    dp_master_ip: Annotated[str, Meta(min_length=1)]
    dp_store_port: Port | None = None


class ApplyBody(CommandBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of ``apply``; ``retry`` exists over gRPC only."""

    endpoint_ids: Annotated[list[Rank], Meta(min_length=1)]
    instruction: Literal["scale_down"]
    params: ApplyParams


class FinalizeBody(CommandBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of ``finalize``."""

    commit: bool
    retired_endpoint_ids: list[Rank] = []


class SoftwareFaultBody(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``report_software_fault``; unknown fields are ignored, a report is worth more than its form."""

    pod_ip: Annotated[str, Meta(min_length=1)]
    node_manager_port: Port
    engine_id: Rank
    engine_status: Literal[0, 1, 2]
    instance_id: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    exception_type: str = ""
    exception_message: str = ""
    additional_info: dict[str, object] | None = None


async def read(request: web.Request, schema: type[T]) -> T:
    """Read a JSON body; raises FieldError that names the field."""
    if request.content_type != "application/json":
        raise FieldError({"Content-Type": f"must be application/json, not {request.content_type}"})
    try:
        return msgspec.convert(_DECODER.decode(await request.read()), type=schema)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise FieldError({where.strip("`.") or "body": what}) from error
    except NOT_JSON as error:
        raise FieldError({"body": f"is not JSON: {error}"}) from error


def _number(text: str) -> int | float:
    """A number with a fraction or an exponent; a whole one (1.0, 1e3) is an integer, as JSON Schema has it."""
    value = float(text)
    if not value.is_integer() or abs(value) >= 2**63:
        return value
    return int(value) if abs(value) < 2**53 else int(Decimal(text))  # beyond that a float is no longer exact


_DECODER = msgspec.json.Decoder(float_hook=_number)


def ranks(values: list[int], path: str) -> tuple[int, ...]:
    """Ranks in ascending order; raises FieldError when one is named twice."""
    if len(set(values)) != len(values):
        raise FieldError({path: f"must name each rank once, not {values}"})
    return tuple(sorted(values))
