"""The first answer again for the same request id."""

from collections.abc import Awaitable, Callable

from motor_ft.model.command import Command
from motor_ft.wire.commands import CommandLedger


async def answer_once(
    ledger: CommandLedger, method: str, command: Command, payload: bytes, run: Callable[[], Awaitable[bytes]]
) -> bytes:
    """Return the recorded answer, or run and record; raises FtError REQUEST_ID_REUSED and what ``run`` raises."""
    if (first := await ledger.replay(method, command, payload)) is not None:
        return first
    try:
        response = await run()
        await ledger.answered(method, command, payload, response)
    except BaseException:  # however it ends, also by cancellation, duplicates must not wait for ever
        ledger.failed(method, command, payload)
        raise
    return response
