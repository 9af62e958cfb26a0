"""What etcd's answers mean to us."""

import grpc

from motor_ft.model.errors import FtError, Reason

_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}


class RefusedError(FtError):
    """Etcd has understood and refuses: neither time nor another member helps."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.STORE_UNAVAILABLE, f"etcd: {why}")


class CompactedError(Exception):
    """What a watch asked for is not kept any more: read anew, and watch from there."""


def unavailable(why: str) -> FtError:
    """Nobody answered, or not in time."""
    return FtError(Reason.STORE_UNAVAILABLE, f"etcd: {why}")


def failed(what: str, endpoint: str, error: grpc.aio.AioRpcError) -> FtError:
    """Return the error that a failed call means."""
    text = f"{what} at {endpoint}: {error.details() or error.code().name}"
    return unavailable(text) if error.code() in _TRANSIENT else RefusedError(text)


def stale_token(error: grpc.aio.AioRpcError) -> bool:
    """The login has expired, or users have changed since; the request was not looked at."""
    return error.details() in {"etcdserver: invalid auth token", "etcdserver: revision of auth store is old"}


def not_taken(error: grpc.aio.AioRpcError) -> bool:
    """The member belongs to no majority and has turned the request away; it was not looked at."""
    return error.details() == "etcdserver: no leader"
