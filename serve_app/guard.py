"""ASGI middleware of the API: API keys, size and time limits of request bodies, gzip, HEAD, and security headers."""

import asyncio
import hashlib
import hmac
import os
import zlib
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from axml_ray.core.errors import SettingsError
from serve_app.problems import FieldError, problem
from serve_app.service import Service
from serve_app.settings import BODY_LIMIT_S

KEYS_VARIABLE = "AXML_RAY_API_KEYS"
GUARDED = "/v1/"
DOCS = "/docs"
GZIP = 16 + zlib.MAX_WBITS
"""zlib's code for the gzip format."""

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
    """Return the accepted API keys from `AXML_RAY_API_KEYS`, separated by commas or blanks; without any, all may ask.

    Raises:
        SettingsError: a key has characters outside ASCII, which clients encode in HTTP headers in different ways.
    """
    keys = os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split()
    if wrong := [place for place, key in enumerate(keys, start=1) if not key.isascii()]:
        raise SettingsError(
            f"{KEYS_VARIABLE}: key {wrong[0]} has characters that HTTP headers cannot carry; use ASCII only"
        )
    return keys


class Guard:
    """Middleware that checks a request before the application sees it. Without accepted `keys`, no key is required."""

    def __init__(self, app: ASGIApp, service: Service, keys: Sequence[str] = ()):
        self.app, self.service, self.serving = app, service, service.serving
        self._keys = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 400, 401, 408, 413, 415 or 503."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # Below the prefix of the application, as in its routes.
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        is_head = scope["method"] == "HEAD"
        if is_head:  # FastAPI has no routes for it; the answer is that of GET without the body
            scope = {**scope, "method": "GET"}

        is_started = False

        async def send_safely(message: Message) -> None:
            nonlocal is_started
            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                is_started = True
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
        self.service.in_flight += 1
        try:
            if path.startswith(GUARDED):
                await self._read_and_forward(scope, receive, send_safely)
            else:  # no other route takes a body
                await self.app(scope, receive, send_safely)
        except Exception:  # answered here, with the headers; raised again for the server's log
            if not is_started:
                await problem(500, "internal error; see the server's log")(scope, receive, send_safely)
            raise
        finally:
            self.service.in_flight -= 1

    async def _read_and_forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body within its limits, and forward the request to the application."""
        try:
            body = await self._read(receive, Headers(scope=scope))
        except _Refusal as refusal:
            await refusal.response(scope, receive, send)
            return
        if body is None:
            return  # the client has disconnected
        is_sent = False

        async def receive_again() -> Message:
            """Replay the body once, then forward further messages, such as a disconnect."""
            nonlocal is_sent
            if is_sent:
                return await receive()
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, receive_again, send)

    async def _read(self, receive: Receive, headers: Headers) -> bytes | None:
        """Return the complete body of a request, decompressed; None if the client disconnects before its end.

        Raises:
            _Refusal: the body is too large as sent or decompressed, too slow, or in an encoding that is not read.
        """
        limit, body, received = self.serving.max_body_bytes, bytearray(), 0
        detail = f"the body is larger than {limit:,} bytes; send fewer texts at a time"
        too_large = _Refusal(problem(413, detail, [FieldError(field="body", message=detail, limit=limit)]))
        encoding, length = ",".join(headers.getlist("content-encoding")).lower(), headers.get("content-length", "")
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            detail = f"the body has Content-Encoding: {encoding}; send it as gzip, or without this header"
            raise _Refusal(problem(415, detail, headers={"Accept-Encoding": "gzip"}))
        if length.isdecimal() and int(length) > limit:
            raise too_large
        unzip = zlib.decompressobj(GZIP) if "gzip" in encoding else None
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    received += len(chunk)
                    # At most one byte more than allowed, however much a small body would become.
                    body += unzip.decompress(chunk, limit + 1 - len(body)) if unzip else chunk
                    if max(received, len(body)) > limit:
                        raise too_large
                    if unzip and unzip.unused_data:
                        raise zlib.error("bytes follow its end")
                    if not message.get("more_body"):
                        break
            if unzip and received and not unzip.eof:
                raise zlib.error("its end is missing")
        except TimeoutError:
            detail = f"the body did not arrive within {BODY_LIMIT_S:g} s; send it again"
            raise _Refusal(problem(408, detail)) from None
        except zlib.error as error:
            raise _Refusal(problem(400, f"body: not gzip as its Content-Encoding says ({error})")) from None
        return bytes(body)

    def _allowed(self, authorization: str) -> bool:
        """Return whether an Authorization header carries an accepted key, or none is required."""
        if not self._keys:
            return True
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        # Digests of all keys are compared in constant time, so the duration reveals nothing about the keys.
        matches = sum(hmac.compare_digest(digest, known) for known in self._keys)
        return scheme.lower() == "bearer" and matches > 0


def closing() -> JSONResponse:
    """Return the response of a server that is draining."""
    return problem(503, "the server is shutting down; try again soon", headers={"Retry-After": "5"})


class _Refusal(Exception):
    """A request's body cannot be read; `response` says why."""

    def __init__(self, response: JSONResponse):
        self.response = response


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
