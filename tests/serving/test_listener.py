"""The HTTP server in the ingress: it answers, shares its port, and cancels requests whose client has left."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import requests
from ports import free_port
from starlette.types import Receive, Scope, Send

from serve_app.listener import bound_sockets, listen

SECONDS = 20


class Application:
    """Answers with its name, after reading the body; on the path `/slow` never."""

    def __init__(self, name: bytes):
        self.name, self.started, self.cancelled = name, threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"] == "/slow":
            self.started.set()
            try:
                await asyncio.sleep(SECONDS)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name + b"%d" % len(body)})


class Servers:
    """An event loop in a thread, as in a replica, and its servers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def start(self, app: Application, port: int) -> "asyncio.Task[None]":
        return asyncio.run_coroutine_threadsafe(listen(app, "127.0.0.1", port), self.loop).result(SECONDS)


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)


@pytest.fixture
def port() -> int:
    return free_port()


def test_it_answers_bodies_of_any_size(servers: Servers, port: int) -> None:
    task = servers.start(Application(b"a"), port)
    with requests.Session() as session:
        for size in (0, 1, 3_000_000):
            answer = session.post(f"http://127.0.0.1:{port}/", data=b"x" * size, timeout=SECONDS)
            assert (answer.status_code, answer.content) == (200, b"a%d" % size)
            assert "server" not in answer.headers
    assert not task.done()


def test_a_second_replica_shares_the_port(servers: Servers, port: int) -> None:
    for name in (b"a", b"b"):
        servers.start(Application(name), port)
    answers, end = set(), time.monotonic() + SECONDS
    while len(answers) < 2 and time.monotonic() < end:
        answers.add(requests.get(f"http://127.0.0.1:{port}/", timeout=SECONDS).content)
    assert answers == {b"a0", b"b0"}


def test_a_request_whose_client_has_left_is_cancelled(servers: Servers, port: int) -> None:
    app = Application(b"a")
    servers.start(app, port)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n")
        assert app.started.wait(SECONDS)
        assert not app.cancelled.is_set()
    assert app.cancelled.wait(SECONDS)
    assert requests.get(f"http://127.0.0.1:{port}/", timeout=SECONDS).content == b"a0"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_name_has_a_socket_for_each_of_its_addresses(host: str, port: int) -> None:
    addresses = {entry[4][0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    sockets = bound_sockets(host, port)
    assert {each.getsockname()[0] for each in sockets} == addresses
    assert {each.getsockname()[1] for each in sockets} == {port}
    for each in sockets:
        each.close()


def test_an_address_in_use_is_an_error(servers: Servers, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError):
        servers.start(Application(b"a"), port)
