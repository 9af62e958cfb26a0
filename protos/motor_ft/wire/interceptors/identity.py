"""Who calls, and what is commanded."""

from typing import Any, Protocol, cast

import grpc
import structlog
from google.protobuf.message import Message

from motor_ft.model.command import Command
from motor_ft.v1.common_pb2 import CommandHeader, OperatorHeader
from motor_ft.wire.authorizer import Authorizer
from motor_ft.wire.convert import command_from_header, operator_from_header
from motor_ft.wire.policy import MethodPolicy


class _Fenced(Protocol):
    @property
    def header(self) -> CommandHeader | OperatorHeader: ...


async def authorize(
    authorizer: Authorizer | None, policy: MethodPolicy, method: str, context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """Let the authorizer decide, where the server has one and the method asks for it."""
    if authorizer is not None and policy.authenticated:
        await authorizer.authorize(method, dict(context.invocation_metadata() or ()), context.peer())


def identify(request: Message) -> Command:
    """Read the command in a request's ``header`` and bind it to the logs of this RPC; raises FieldError.

    An operator's is unfenced: its servicer compares the generation.
    """
    header = cast(_Fenced, request).header  # RpcServer.add saw that it is there
    if isinstance(header, OperatorHeader):
        order = operator_from_header(header)
        command = Command(order.instance_id, order.request_id, None, None)
    else:
        command = command_from_header(header)
    # Never unbound: every RPC has a task, and with it a context, of its own.
    structlog.contextvars.bind_contextvars(request_id=command.request_id, instance_id=command.instance_id)
    return command
