"""``scripts/run``: exit code 0 after Ctrl-C or --once, 1 when something could not start or did not recover."""

from __future__ import annotations

from motor_ft.wire.early import end_quietly

end_quietly()  # what follows takes a second or more

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

import aiohttp
import grpc
from rich.console import Console, Group
from rich.live import Live

from motor_ft.v1 import controller_pb2
from scripts.live.options import Fault, Options, parse
from scripts.live.view import View, timings
from tests.support.cluster import Cluster, Evidence, Shape
from tests.support.processes import ProcessError, accepts

AWAITED_SEC = 3.0
RECOVERY_TIMEOUT_SEC = 120.0
REACH_TIMEOUT_SEC = 3.0


class Show:
    """One run: the cluster, what is shown of it, and the faults."""

    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._cluster = Cluster(options.folder, options.shape)
        self._plain = options.plain or not console.is_terminal
        self.started = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``, or with --once until the last fault is recovered from."""
        pods, ranks = len(self._options.shape.pods), self._options.shape.dp_size
        self._console.print(f"starting; pods: {pods}, ranks: {ranks}, logs: {self._options.folder}", soft_wrap=True)
        async with contextlib.AsyncExitStack() as stack:
            with contextlib.nullcontext() if self._plain else self._console.status("until the instance serves …"):
                async with self._telling_who_is_awaited():
                    cluster = await stack.enter_async_context(self._cluster)
                await cluster.start_gateway()
            evidence = await stack.enter_async_context(Evidence(cluster))
            self.started = True
            view = View(cluster, evidence)
            if self._plain:
                self._console.print("\n".join(view.services()), soft_wrap=True)
            tasks = [
                asyncio.create_task(self._follow(view), name="follow"),
                asyncio.create_task(self._break(view, stop), name="break"),
                asyncio.create_task(stop.wait(), name="stop"),
            ]
            async with self._screen(view):
                try:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
            self._console.print("stopping …")
            if cluster.faults:
                self._console.print(timings(evidence.latencies()))
        self._console.print(f"all processes have ended; logs and evidence are in {self._options.folder}")

    @contextlib.asynccontextmanager
    async def _telling_who_is_awaited(self) -> AsyncIterator[None]:
        telling = asyncio.create_task(self._tell_who_is_awaited(), name="awaited")
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _tell_who_is_awaited(self) -> None:
        """Engines that run elsewhere may never become healthy: whoever started this has to see which, and why."""
        told: dict[int, str] = {}
        while self._options.shape.urls:
            await asyncio.sleep(AWAITED_SEC)
            for number, (_, _, port) in enumerate(self._cluster.pod_ports):
                why = await self._awaited(port)
                if why != told.get(number, ""):
                    told[number] = why
                    self._console.print(f"pod {number} {why or 'is ready'}", soft_wrap=True, markup=False)

    async def _awaited(self, port: int) -> str:
        try:
            async with self._cluster.site.http.get(f"http://127.0.0.1:{port}/readyz") as answer:
                return "" if answer.status == 200 else (await answer.text()).partition("\n")[0]
        except aiohttp.ClientError:
            return ""  # it is about to start

    @contextlib.asynccontextmanager
    async def _screen(self, view: View) -> AsyncIterator[None]:
        if self._plain:
            yield
            return

        def render() -> Group:
            return view.render(self._console.height)

        # On a screen of its own: the terminal's echo of ^C and a changed size cannot leave remains of older pictures.
        try:
            with Live(get_renderable=render, console=self._console, refresh_per_second=8, screen=True):
                yield
        finally:
            self._console.print(view.render(height=sys.maxsize))

    async def _follow(self, view: View) -> None:
        while True:
            async with self._cluster.stub() as stub:
                with contextlib.suppress(grpc.aio.AioRpcError):  # the Controller is away; ask again
                    request = controller_pb2.WatchInstancesRequest()
                    async for update in stub.WatchInstances(request, wait_for_ready=True):
                        if update.HasField("instance"):
                            self._print(view.changed(update.instance))
            await asyncio.sleep(0.2)

    async def _break(self, view: View, stop: asyncio.Event) -> None:
        for fault in self._options.faults:
            await asyncio.sleep(fault.after)
            before = (await self._cluster.instances())[0]
            if fault.rank in before.dead_committed:
                self._print(view.say(f"no fault: rank {fault.rank} has been removed already"))
                continue
            self._print(view.say(f"fault: {fault.kind} on rank {fault.rank}"))
            self._print(view.changed(await self._recover(fault, before)))
            self._print(view.say("serving again"))
        if not self._options.once:
            await stop.wait()

    async def _recover(self, fault: Fault, before: controller_pb2.Instance) -> controller_pb2.Instance:
        await self._cluster.inject(fault.kind, fault.rank)
        return await self._cluster.until(
            lambda now: now.can_serve and (now.instance_id, now.generation) > (before.instance_id, before.generation),
            "serves again",
            RECOVERY_TIMEOUT_SEC,
        )

    def _print(self, line: str | None) -> None:
        if line and self._plain:
            self._console.print(line, soft_wrap=True, highlight=False)


async def unreachable(shape: Shape) -> list[str]:
    """URLs of engines that accept no connection now: the instance would wait for them for ever."""

    async def reached(host: str, port: int) -> bool:
        try:
            async with asyncio.timeout(REACH_TIMEOUT_SEC):
                return await accepts(host, port)
        except TimeoutError:
            return False

    answers = await asyncio.gather(*(reached(*address) for address in shape.addresses))
    return [url for url, answer in zip(shape.urls, answers, strict=True) if not answer]


async def main(options: Options) -> int:
    """Run until the first SIGINT or SIGTERM: that ends cleanly, whatever is going on."""
    console = Console()
    if silent := await unreachable(options.shape):
        text = f"--engines: nobody listens at {', '.join(silent)}; start these engines first"
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    stop = asyncio.Event()
    show = Show(options, console)
    running = asyncio.create_task(show.run(stop))

    def end() -> None:
        if not show.started and not stop.is_set():  # a second Ctrl-C must not cut short what ends the processes
            running.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)
    try:
        await running
    except asyncio.CancelledError:
        console.print("ended before everything had started")
        return 1
    except (ProcessError, TimeoutError, aiohttp.ClientError) as error:  # the last: something was ended by hand
        problem = str(error).partition("; last seen: ")[0]  # which is for tests: the logs tell more, and more briefly
        console.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
        console.print(f"logs are in {options.folder}", soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse())))
