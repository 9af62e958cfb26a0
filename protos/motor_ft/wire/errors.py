"""The error catalog on the wire: ``google.rpc.Status`` with ErrorInfo (protocol.md section 4)."""

from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types

from motor_ft.model.errors import CATALOG, DOMAIN, FieldError, FtError, Reason
from motor_ft.wire.convert import duration_to_pb

DETAILS_KEY = "grpc-status-details-bin"
RETRY_AFTER_SEC = {Reason.NOT_LEADER: 1.0, Reason.OVERLOADED: 1.0}
# Status travels in HTTP headers, of which a client accepts 8 KiB; longer ones would replace the error by another.
_MAX_MESSAGE_BYTES = 1024
_MAX_DETAIL_BYTES = 256

_NOT_KNOWN = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


def to_abort(error: FtError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return code, details and trailing metadata that carry ``error``; long texts are cut."""
    code = grpc.StatusCode[CATALOG[error.reason].grpc_code]
    status = status_pb2.Status(code=code.value[0], message=_cut(error.message, _MAX_MESSAGE_BYTES))
    metadata = {key: _cut(value, _MAX_DETAIL_BYTES) for key, value in error.metadata.items()}
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata),
    ]
    if isinstance(error, FieldError):
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=path, description=_cut(what, _MAX_DETAIL_BYTES))
            for path, what in error.violations.items()
        ]
        details.append(error_details_pb2.BadRequest(field_violations=violations))
    if delay := RETRY_AFTER_SEC.get(error.reason):
        details.append(error_details_pb2.RetryInfo(retry_delay=duration_to_pb(delay)))
    for detail in details:
        status.details.add().Pack(detail)
    return code, status.message, ((DETAILS_KEY, status.SerializeToString()),)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: FtError) -> NoReturn:
    """End the RPC with ``error``, which becomes the cause of the AbortError that is raised."""
    try:
        await context.abort(*to_abort(error))
    except grpc.aio.AbortError as aborted:
        raise aborted from error


def from_rpc_error(error: grpc.aio.AioRpcError) -> FtError:
    """Return the error that the other side meant.

    Without ErrorInfo of ours: OUTCOME_UNKNOWN when the request may have been received, else INTERNAL.
    """
    if (meant := _read_status(error)) is not None:
        return meant
    text = f"{error.code().name}: {error.details() or 'no details'}"
    return FtError(Reason.OUTCOME_UNKNOWN if error.code() in _NOT_KNOWN else Reason.INTERNAL, text)


def _cut(text: str, max_bytes: int) -> str:
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")


def _read_status(error: grpc.aio.AioRpcError) -> FtError | None:
    try:
        status = status_pb2.Status.FromString(error.trailing_metadata()[DETAILS_KEY])
    except (KeyError, TypeError, DecodeError):
        return None  # it comes from gRPC itself, from a proxy or from a foreign server
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info) or detail.Unpack(bad_request)
    if info.domain != DOMAIN or info.reason not in Reason.__members__:
        return None
    if bad_request.field_violations:
        return FieldError({violation.field: violation.description for violation in bad_request.field_violations})
    return FtError(Reason(info.reason), error.details() or "", **info.metadata)
