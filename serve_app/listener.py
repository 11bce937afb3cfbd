"""An HTTP server in the process of the ingress, for a server on one machine.

Ray's proxy takes about as long for a single text as three small trees. Here, clients reach the application without it.
A replica that replaces a dead one listens on the same address again.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from axml_ray.core.errors import SettingsError

KEEP_ALIVE_S = 90
"""Seconds that an idle connection stays open, as with Ray's proxy."""
BACKLOG = 2_048
"""Connections that may wait to be accepted."""


async def listen(app: ASGIApp, host: str, port: int) -> "asyncio.Task[None]":
    """Serve an application on an address, in the running event loop, which must not be that of the main thread.

    Returns:
        The task of the server, which ends only if the server fails.

    Raises:
        OSError: the address cannot be bound.
    """
    sockets = bound_sockets(host, port)
    config = uvicorn.Config(
        CancelOnDisconnect(app),
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=sockets))
    while not (server.started or task.done()):
        await asyncio.sleep(0.01)
    if task.done():
        task.result()  # raises what the server raised
        raise OSError(f"the server could not listen on {host}, port {port}")
    return task


def bound_sockets(host: str, port: int, *, share: bool = True) -> list[socket.socket]:
    """Return a socket for each address that a host name has, such as the two of localhost.

    With `share`, other sockets may share the port, as replicas of an application do, also while one replaces another.

    Raises:
        OSError: an address cannot be bound.
    """
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            sockets.append(bound := socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(share))
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
            bound.bind(address)
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def check_address(host: str, port: int) -> bool:
    """Check that a server can listen on an address now, before anything is started.

    With SO_REUSEPORT, two servers can share a port without an error, and clients reach either of them. A socket without
    that option cannot be bound to a port that is in use, on this address or on all of them.

    Raises:
        SettingsError: the port is in use, or a server cannot listen on this host or port.

    Returns:
        Whether only this machine can reach the address.
    """
    try:
        sockets = bound_sockets(host, port, share=False)
    except (socket.gaierror, UnicodeError) as error:
        raise SettingsError(f"host: {host!r} can't be resolved ({error}); give an address such as 127.0.0.1") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port: {port} is in use on {host} by another server; stop it, or give another --port"
            raise SettingsError(reason) from None
        setting, fix = "host", "give an address of this machine, such as 127.0.0.1"
        if error.errno == errno.EACCES:
            setting, fix = "port", "give a port above 1023"
        reason = os.strerror(error.errno or 0)
        raise SettingsError(f"{setting}: can't listen on {host}, port {port} ({reason}); {fix}") from None
    addresses = [bound.getsockname()[0].partition("%")[0] for bound in sockets]  # without a zone, as in fe80::1%eth0
    for bound in sockets:
        bound.close()
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


class CancelOnDisconnect:
    """Middleware that cancels a request whose client has left, as Ray's proxy does."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # One message at a time, so that a body is read no faster than the application takes it.
        messages: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        is_answered = has_left = False

        async def send_and_note(message: Message) -> None:
            nonlocal is_answered
            is_answered = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        async def forward() -> None:
            nonlocal has_left
            while True:
                message = await receive()
                await messages.put(message)
                # The server also reports a disconnect when it has sent the answer.
                if message["type"] == "http.disconnect" and not is_answered:
                    has_left = True
                    request.cancel()
                    return

        request = asyncio.ensure_future(self.app(scope, messages.get, send_and_note))
        forwarding = asyncio.create_task(forward())
        try:
            with suppress(asyncio.CancelledError):
                await request
            if request.cancelled() and not has_left:
                raise asyncio.CancelledError
        finally:
            request.cancel()
            forwarding.cancel()
