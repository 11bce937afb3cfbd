"""What stands before the API: keys, limits of bodies, and headers that keep a browser safe. Plain ASGI."""

import asyncio
import hashlib
import hmac
import os
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from axml_ray.settings import SettingsError
from serve_app.problems import Wrong, problem
from serve_app.service import Service

KEYS_VARIABLE = "AXML_RAY_API_KEYS"
GUARDED = "/v1/"
DOCS = "/docs"

SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Swagger's own page starts with an inline script and sets styles on its elements.
DOCS_POLICY = POLICY.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)


def keys_of_environment() -> list[str]:
    """The keys that clients may use, from `AXML_RAY_API_KEYS`, separated by commas or blanks; none lets everyone in.

    Raises:
        SettingsError: one has other characters than ASCII's, which HTTP's headers have no agreed way to send.
    """
    keys = os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split()
    if wrong := [place for place, key in enumerate(keys, start=1) if not key.isascii()]:
        raise SettingsError(f"{KEYS_VARIABLE}: key {wrong[0]} has letters that HTTP can't send; take ASCII's")
    return keys


class Guard:
    """Checks a request before the application sees it.

    Args:
        app: what is guarded.
        service: its limits, and whether it is about to end.
        keys: that clients may use; none lets everyone in.
    """

    def __init__(self, app: ASGIApp, service: Service, keys: Sequence[str] = ()):
        self.app, self.service, self.serving = app, service, service.serving
        self._keys = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))  # as the routes are written

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    added.setdefault(name, value)
                added["Content-Security-Policy"] = DOCS_POLICY if path == DOCS else POLICY
            await send(message)

        if path.startswith(GUARDED) and not self._allowed(headers.get("authorization", "")):
            refused = problem(
                401,
                "send one of the server's keys as `Authorization: Bearer …`",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refused(scope, receive, send_safely)
            return
        if path.startswith(GUARDED) and self.service.draining:
            await closing()(scope, receive, send_safely)
            return
        self.service.under_way += 1
        try:
            await self._with_body(scope, receive, send_safely)
        finally:
            self.service.under_way -= 1

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on with all of its body, or refuse it."""
        limit = self.serving.max_body_bytes
        length = Headers(scope=scope).get("content-length", "")
        detail = f"the body is larger than {limit:,} bytes; send fewer texts at a time"
        too_large = problem(413, detail, [Wrong(field="body", message=detail, limit=limit)])
        if length.isdecimal() and int(length) > limit:
            await too_large(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self.serving.body_limit_s):
                body = await _read(receive, limit)
        except TimeoutError:
            late = problem(408, f"the body didn't arrive within {self.serving.body_limit_s:g} s")
            await late(scope, receive, send)
            return
        except _TooLarge:
            await too_large(scope, receive, send)
            return
        if body is None:
            return  # the client has left
        given = False

        async def receive_again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, receive_again, send)

    def _allowed(self, authorization: str) -> bool:
        if not self._keys:
            return True
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip())
        # All of them, whichever fits: neither length nor place of a key can be told from the time this takes.
        fits = sum(hmac.compare_digest(given, known) for known in self._keys)
        return scheme.lower() == "bearer" and fits > 0


def closing() -> JSONResponse:
    """The answer of a server that is about to end."""
    return problem(503, "the server is about to end; try again soon", headers={"Retry-After": "5"})


class _TooLarge(Exception):
    pass


async def _read(receive: Receive, limit: int) -> bytes | None:
    """A whole body; None if its sender left before its end."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise _TooLarge
        if not message.get("more_body"):
            return bytes(body)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
