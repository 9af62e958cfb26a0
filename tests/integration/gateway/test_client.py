"""Hostile engines: what is UNREACHABLE, what is not, and that an order is never sent twice."""

import asyncio
import socket
import time

import pytest

from gateway.engines.client import EngineHttp, NotSentError, UnansweredError
from gateway.engines.dialect import MAX_BODY, Reply, UnreadableError
from motor_ft.model.engine import Problem
from tests.integration.gateway.raw_server import Exchange, raw_server
from tests.support.ports import free_port

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


async def problem_of(http: EngineHttp, url: str, timeout: float = 5.0) -> tuple[Problem, str]:
    with pytest.raises(UnreadableError) as caught:
        await http.get(url, timeout)
    assert "s3cret" not in str(caught.value)
    return caught.value.problem, caught.value.detail


async def silence(exchange: Exchange) -> None:
    """Never answer."""
    await asyncio.Event().wait()


async def ok(exchange: Exchange) -> None:
    await exchange.answer(200, b"{}")


class TestGet:
    """Reading."""

    async def test_a_refused_connection_is_unreachable(self, http: EngineHttp) -> None:
        url = f"http://127.0.0.1:{free_port()}/x"
        assert await problem_of(http, url) == (Problem.UNREACHABLE, f"{url}: Connection refused")

    async def test_no_answer_in_time_is_unreachable(self, http: EngineHttp) -> None:
        async with raw_server(silence) as server:
            assert (await problem_of(http, f"{server.url}/x", 0.05))[0] is Problem.UNREACHABLE

    async def test_a_body_that_never_ends_is_unreachable(self, http: EngineHttp) -> None:
        async def dribble(exchange: Exchange) -> None:
            await exchange.send(HEAD + b"Content-Length: 100\r\n\r\n{")
            await asyncio.Event().wait()

        async with raw_server(dribble) as server:
            assert (await problem_of(http, f"{server.url}/x", 0.05))[0] is Problem.UNREACHABLE

    async def test_a_reset_before_the_answer_is_unreachable_when_a_fresh_connection_is_reset_too(
        self, http: EngineHttp
    ) -> None:
        async def reset(exchange: Exchange) -> None:
            exchange.reset()

        async with raw_server(reset) as server:
            assert (await problem_of(http, f"{server.url}/x"))[0] is Problem.UNREACHABLE

    async def test_a_reset_after_the_headers_is_unreachable(self, http: EngineHttp) -> None:
        async def half(exchange: Exchange) -> None:
            await exchange.send(HEAD + b"Content-Length: 100\r\n\r\n{")
            exchange.reset()

        async with raw_server(half) as server:
            assert (await problem_of(http, f"{server.url}/x"))[0] is Problem.UNREACHABLE

    async def test_a_body_that_ends_early_is_no_evidence(self, http: EngineHttp) -> None:
        async def half(exchange: Exchange) -> None:
            await exchange.send(HEAD + b"Content-Length: 100\r\n\r\n{")
            exchange.close()

        async with raw_server(half) as server:
            assert (await problem_of(http, f"{server.url}/x"))[0] is Problem.PROTOCOL

    async def test_what_is_not_http_is_a_protocol_problem(self, http: EngineHttp) -> None:
        async def garbage(exchange: Exchange) -> None:
            await exchange.send(b"\x00\x01SSH-2.0-OpenSSH\r\n\r\n")
            exchange.close()

        async with raw_server(garbage) as server:
            assert (await problem_of(http, f"{server.url}/x"))[0] is Problem.PROTOCOL

    async def test_headers_without_end_are_a_protocol_problem(self, http: EngineHttp) -> None:
        async def endless(exchange: Exchange) -> None:
            await exchange.send(HEAD + b"X: " + b"x" * 200_000 + b"\r\n\r\n")

        async with raw_server(endless) as server:
            assert (await problem_of(http, f"{server.url}/x"))[0] is Problem.PROTOCOL

    @pytest.mark.parametrize("announced", [True, False])
    async def test_of_a_long_body_no_more_than_the_limit_is_kept(self, http: EngineHttp, announced: bool) -> None:
        async def ten_mib(exchange: Exchange) -> None:
            length = b"Content-Length: 10485760\r\n\r\n" if announced else b"Connection: close\r\n\r\n"
            await exchange.send(HEAD + length)
            for _ in range(160):
                await exchange.send(b" " * 65536)
            exchange.close()

        async with raw_server(ten_mib) as server:
            assert len((await http.get(f"{server.url}/x", 5.0)).body) == MAX_BODY + 1

    async def test_a_redirect_is_not_followed(self, http: EngineHttp) -> None:
        async def redirect(exchange: Exchange) -> None:
            await exchange.answer(307, b"", "Location: /elsewhere")

        async with raw_server(redirect) as server:
            assert (await http.get(f"{server.url}/x", 5.0)).status == 307
            assert len(server.requests) == 1

    async def test_a_compressed_body_is_not_unpacked(self, http: EngineHttp) -> None:
        async def zipped(exchange: Exchange) -> None:
            await exchange.answer(200, b"\x1f\x8b...", "Content-Encoding: gzip")

        async with raw_server(zipped) as server:
            assert await http.get(f"{server.url}/x", 5.0) == Reply(200, b"\x1f\x8b...")

    async def test_an_unknown_name_is_our_problem(self, http: EngineHttp) -> None:
        assert (await problem_of(http, "http://no-such-engine.invalid:1/x"))[0] is Problem.LOCAL

    async def test_a_name_that_nobody_resolves_in_time_is_our_problem(
        self, http: EngineHttp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The engine has not even been asked."""

        async def hang(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
        for _ in range(2):
            problem, detail = await problem_of(http, "http://engine.example:1/x", 0.05)
            assert problem is Problem.LOCAL
            assert "engine.example" in detail
        async with raw_server(silence) as server:
            assert (await problem_of(http, f"{server.url}/x", 0.05))[0] is Problem.UNREACHABLE

    async def test_an_engine_that_does_not_speak_tls_is_our_problem(self, http: EngineHttp) -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert (await problem_of(http, f"https://127.0.0.1:{port}/x"))[0] is Problem.LOCAL

    async def test_running_out_of_descriptors_is_our_problem(
        self, http: EngineHttp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_more(*_: object, **__: object) -> socket.socket:
            raise OSError(24, "Too many open files")

        async with raw_server(ok) as server:
            monkeypatch.setattr(socket, "socket", no_more)
            problem, _ = await problem_of(http, f"{server.url}/x")
            monkeypatch.undo()
        assert problem is Problem.LOCAL

    async def test_a_process_that_stood_still_does_not_blame_the_engine(self, http: EngineHttp) -> None:
        asked = asyncio.Event()

        async def late(exchange: Exchange) -> None:
            asked.set()
            await asyncio.Event().wait()

        async with raw_server(late) as server:
            reading = asyncio.create_task(problem_of(http, f"{server.url}/x", 0.05))
            await asked.wait()
            time.sleep(0.4)  # noqa: ASYNC251 - the loop standing still is what is tested
            assert (await reading)[0] is Problem.LOCAL

    async def test_a_kept_connection_that_died_is_no_evidence_while_a_fresh_one_works(self, http: EngineHttp) -> None:
        """The first connection is answered once and reset at the second request."""
        served = 0

        async def once_per_connection(exchange: Exchange) -> None:
            nonlocal served
            served += 1
            if served == 2:
                exchange.reset()
            else:
                await exchange.answer(200, b"{}")

        async with raw_server(once_per_connection) as server:
            for _ in range(2):
                assert (await http.get(f"{server.url}/x", 5.0)).status == 200
            assert server.connections > 1

    async def test_many_kept_connections_that_died_at_once_are_no_evidence(self, http: EngineHttp) -> None:
        """However many of them there are: the last attempt is on a connection that was never used."""
        together = asyncio.Barrier(4)
        restarted = False

        async def until_restarted(exchange: Exchange) -> None:
            if not restarted:
                await together.wait()
                await exchange.answer(200, b"{}")
            elif b"Connection: close" in exchange.request:
                await exchange.answer(200, b"{}")
            else:
                exchange.reset()

        async with raw_server(until_restarted) as server:
            await asyncio.gather(*(http.get(f"{server.url}/x", 5.0) for _ in range(4)))
            restarted = True
            assert (await http.get(f"{server.url}/x", 5.0)).status == 200


class TestPost:
    """Ordering."""

    @pytest.mark.parametrize("how", ["reset", "close", "half", "silence"])
    async def test_an_order_without_an_answer_is_unanswered_and_was_sent_once(self, http: EngineHttp, how: str) -> None:
        async def fail(exchange: Exchange) -> None:
            if how == "reset":
                exchange.reset()
            elif how == "close":
                exchange.close()
            elif how == "half":
                await exchange.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n{")
                exchange.close()
            else:
                await asyncio.Event().wait()

        async with raw_server(fail) as server:
            with pytest.raises(UnansweredError) as caught:
                await http.post(f"{server.url}/v1/x", b"{}", 0.2 if how == "silence" else 5.0)
            assert len(server.requests) == 1
        assert "s3cret" not in str(caught.value)

    async def test_a_refused_connection_means_not_sent(self, http: EngineHttp) -> None:
        with pytest.raises(NotSentError):
            await http.post(f"http://127.0.0.1:{free_port()}/x", b"{}", 5.0)

    async def test_a_connection_that_is_never_made_means_not_sent(self, http: EngineHttp) -> None:
        """A socket that never accepts: its queue is full, so the next connection hangs."""
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(4)]
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            with pytest.raises(NotSentError):
                await http.post(f"http://127.0.0.1:{port}/x", b"{}", 0.3)
            for client in waiting:
                client.close()

    async def test_the_last_check_runs_before_the_first_byte(self, http: EngineHttp) -> None:
        def forbid() -> None:
            raise NotSentError("the lease is over")

        async with raw_server(ok) as server:
            with pytest.raises(NotSentError, match="the lease is over"):
                await http.post(f"{server.url}/x", b"{}", 5.0, forbid)
            assert server.requests == []

    async def test_every_order_has_a_connection_of_its_own(self, http: EngineHttp) -> None:
        async with raw_server(ok) as server:
            await http.get(f"{server.url}/x", 5.0)
            for _ in range(3):
                await http.post(f"{server.url}/x", b"{}", 5.0)
            assert server.connections == 4

    async def test_an_order_is_json_and_is_not_redirected(self, http: EngineHttp) -> None:
        async def redirect(exchange: Exchange) -> None:
            await exchange.answer(307, b"", "Location: /elsewhere")

        async with raw_server(redirect) as server:
            assert (await http.post(f"{server.url}/x", b'{"a":1}', 5.0)).status == 307
            (request,) = server.requests
        assert b"Content-Type: application/json\r\n" in request
        assert request.endswith(b'\r\n\r\n{"a":1}')


async def test_the_token_goes_to_guarded_paths_only(http: EngineHttp) -> None:
    async with raw_server(ok) as server:
        await http.get(f"{server.url}/v1/fault_tolerance/status", 5.0)
        await http.get(f"{server.url}/fault_tolerance/status", 5.0)
        guarded, open_ = server.requests
    assert b"Authorization: Bearer s3cret\r\n" in guarded
    assert b"Authorization" not in open_


async def test_what_fails_inside_this_process_is_told_like_everything_else() -> None:
    http = EngineHttp()
    await http.close()
    assert (await problem_of(http, "http://127.0.0.1:1/x"))[0] is Problem.LOCAL
    with pytest.raises(NotSentError):
        await http.post("http://127.0.0.1:1/x", b"{}", 5.0)
