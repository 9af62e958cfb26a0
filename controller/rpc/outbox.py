"""What waits to be sent on one FaultReport stream."""

import asyncio
from collections import deque
from contextlib import suppress

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportResponse


class Outbox:
    """Messages in order, ``limit`` at most; of acknowledgements only the newest, after everything that was put before.

    A peer that reads too slowly is ``cut``: from then on nothing is taken in.
    """

    def __init__(self, limit: int) -> None:
        self.cut = False
        self._limit = limit
        self._messages: deque[FaultReportResponse] = deque()
        self._processed = 0
        self._acknowledged = 0
        self._closed = False
        self._end: FtError | None = None
        self._changed = asyncio.Event()

    def put(self, message: FaultReportResponse) -> None:
        """Send a message; never blocks."""
        self.cut = self.cut or len(self._messages) == self._limit
        if not self.cut:
            self._messages.append(message)
        self._changed.set()

    def acknowledge(self, sequence: int) -> None:
        """Everything up to ``sequence`` was processed."""
        self._processed = max(self._processed, sequence)
        self._changed.set()

    def close(self, end: FtError | None = None) -> None:
        """Send what waits, and nothing after it; ``end`` is raised then."""
        self._closed = True
        self._end = self._end or end
        self._changed.set()

    async def next(self, progress_sec: float) -> FaultReportResponse | None:
        """The next message, None after the last; an Ack without news where nothing is to be said for so long.

        Raises OVERLOADED when too many have waited, and what ends the stream.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(progress_sec):  # of silence: what is taken in and not answered is no progress
                while True:
                    if self.cut:
                        text = f"{self._limit} messages wait on this stream: read faster, or connect again"
                        raise FtError(Reason.OVERLOADED, text)
                    if self._messages:
                        return self._messages.popleft()
                    if self._processed > self._acknowledged:
                        return self._ack()
                    if self._end is not None:
                        raise self._end
                    if self._closed:
                        return None
                    self._changed.clear()
                    await self._changed.wait()
        return self._ack()

    def _ack(self) -> FaultReportResponse:
        self._acknowledged = self._processed
        return FaultReportResponse(ack=fault_report_pb2.Ack(sequence=self._acknowledged))
