"""What stands before the API, where a proxy has put it under a prefix; and errors that come from another process.

python -m pytest tests/serving/test_guard.py
"""

import gzip
import os
import threading
import time
import zlib
from collections.abc import Iterator

import pytest
import ray
import requests
import uvicorn
from fastapi import Request
from raw_http import head, raw

from axml_ray.core.errors import SettingsError
from serve_app import guard
from serve_app.api import make_api
from serve_app.fan_out import FanOut
from serve_app.guard import keys_of_environment
from serve_app.service import Service
from serve_app.settings import ApplicationSettings, ServingSettings

KEY = "the-key"
KNOWN = {"Authorization": f"Bearer {KEY}"}
LIMIT = 10_000
PAGE = "https://catalogue.example.org"


def far(message: str) -> None:
    """Raise it in a process of Ray's."""

    @ray.remote(num_cpus=0.1)
    def refuse() -> None:
        raise SettingsError(message)

    ray.get(refuse.remote())


async def length_of_body(request: Request) -> int:
    """What the application gets of a body, in bytes."""
    return len(await request.body())


def broken() -> None:
    """Fail as no request should make it."""
    raise RuntimeError


@pytest.fixture(scope="module")
def addresses(ray_cluster: None) -> Iterator[list[str]]:
    """The API with a key, under no prefix and under `/tags`; it has no trees, which nothing here needs."""
    servers = []
    for prefix in ("", "/tags"):
        serving = ServingSettings(max_body_bytes=LIMIT, allowed_origins=PAGE)
        app = make_api(Service(serving, FanOut([], 1)), [KEY])
        app.get("/far")(lambda: far("labels: no label is called 'x'"))
        app.post("/v1/length")(length_of_body)
        app.get("/v1/broken")(broken)
        servers.append(uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", root_path=prefix)))
    threads = [threading.Thread(target=server.run) for server in servers]
    for thread in threads:
        thread.start()
    while not all(server.started for server in servers):
        time.sleep(0.01)
    yield [f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}" for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.should_exit = True
        thread.join()


def test_a_key_that_no_header_can_hold_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AXML_RAY_API_KEYS", "one, two three")
    assert keys_of_environment() == ["one", "two", "three"]
    monkeypatch.setenv("AXML_RAY_API_KEYS", "one,schlüssel")
    with pytest.raises(SettingsError, match="AXML_RAY_API_KEYS: key 2 "):
        keys_of_environment()


def test_keys_are_asked_for_under_any_prefix(addresses: list[str]) -> None:
    for address in addresses:
        assert requests.get(f"{address}/v1/examples", timeout=60).status_code == 401
        assert requests.get(f"{address}/v1/examples", headers=KNOWN, timeout=60).json() == []
        for path, inline in (("/docs", True), ("/healthz", False)):
            answer = requests.get(f"{address}{path}", timeout=60)
            assert answer.status_code == 200
            assert ("unsafe-inline" in answer.headers["content-security-policy"]) == inline


def test_an_error_of_another_process_is_its_message_alone(addresses: list[str]) -> None:
    answer = requests.get(f"{addresses[0]}/far", timeout=60)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "labels: no label is called 'x'"
    assert answer.json()["errors"] == [{"field": "labels", "message": "no label is called 'x'"}]


def test_a_page_of_an_allowed_origin_reads_the_answers(addresses: list[str]) -> None:
    for address in addresses:
        url, asked = f"{address}/v1/tag", "authorization,content-type,content-encoding"
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
        allowed = requests.options(url, headers={"Origin": PAGE, **preflight}, timeout=60)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == PAGE
        assert set(asked.split(",")) <= set(allowed.headers["access-control-allow-headers"].lower().split(", "))
        assert "access-control-allow-credentials" not in allowed.headers
        other = requests.options(url, headers={"Origin": "https://other.example.org", **preflight}, timeout=60)
        assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
        for path, headers, status in (("/v1/examples", KNOWN, 200), ("/v1/examples", {}, 401), ("/healthz", {}, 200)):
            answer = requests.get(f"{address}{path}", headers={"Origin": PAGE, **headers}, timeout=60)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == PAGE and "Origin" in answer.headers["vary"]
        assert "access-control-allow-origin" not in requests.get(f"{address}/healthz", timeout=60).headers


def test_origins_of_the_command_line() -> None:
    given = {"bundle": "b", "allowed_origins": f"{PAGE}:443, HTTP://localhost:3000 http://[::1]:80"}
    origins = ApplicationSettings.from_arguments(given).allowed_origins
    assert origins == (PAGE, "http://localhost:3000", "http://[::1]")  # browsers leave out a scheme's own port
    assert ApplicationSettings.from_arguments({**given, "allowed_origins": ["*"]}).allowed_origins == ("*",)
    for wrong in (f"{PAGE}/page", "catalogue.example.org", "https://*.example.org", [PAGE, ""]):
        with pytest.raises(SettingsError, match=r"^allowed_origins"):
            ApplicationSettings.from_arguments({**given, "allowed_origins": wrong})


def test_head_is_get_without_the_body(addresses: list[str]) -> None:
    for path, headers in (("/healthz", {}), ("/", {}), ("/page/app.js", {}), ("/docs", {}), ("/v1/examples", KNOWN)):
        answer, full = (
            requests.request(method, f"{addresses[0]}{path}", headers=headers, timeout=60) for method in ("HEAD", "GET")
        )
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == str(len(full.content))
    assert requests.head(f"{addresses[0]}/v1/examples", timeout=60).status_code == 401
    assert requests.head(f"{addresses[0]}/v1/tag", headers=KNOWN, timeout=60).status_code == 405
    # On a connection that goes on, a body would be read as the next answer.
    host = b"Host: here\r\n"
    received = raw(
        addresses[0], b"HEAD /healthz HTTP/1.1\r\n" + host + b"\r\n", b"GET /healthz HTTP/1.1\r\n" + host + b"\r\n"
    )
    assert received.count(b'{"status"') == 1 and received.count(b"HTTP/1.1 200") == 2


def sent(address: str, body: object, encoding: str | None) -> requests.Response:
    headers = KNOWN if encoding is None else {**KNOWN, "Content-Encoding": encoding}
    return requests.post(f"{address}/v1/length", data=body, headers=headers, timeout=60)


def test_a_gzip_body_is_limited_as_what_it_becomes(addresses: list[str]) -> None:
    most = b"a" * LIMIT
    for encoding, body in [
        ("gzip", gzip.compress(most)),
        ("X-GZIP", gzip.compress(most)),
        ("identity", most),
        (None, most),
    ]:
        assert sent(addresses[0], body, encoding).json() == LIMIT
    assert sent(addresses[0], b"", "gzip").json() == 0
    noise = gzip.compress(os.urandom(LIMIT - 100))  # in pieces of three bytes
    pieces = (noise[start : start + 3] for start in range(0, len(noise), 3))
    assert sent(addresses[0], pieces, "gzip").json() == LIMIT - 100
    for body in (gzip.compress(most + b"a"), gzip.compress(b"a" * (LIMIT * 900)), gzip.compress(os.urandom(LIMIT))):
        assert sent(addresses[0], body, "gzip").status_code == 413
        assert sent(addresses[0], iter([body]), "gzip").status_code == 413


def test_encodings_that_are_not_read(addresses: list[str]) -> None:
    body = gzip.compress(b"a" * 100)
    for encoding in ("br", "zstd", "deflate", "gzip, gzip"):
        answer = sent(addresses[0], body, encoding)
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip")
    for damaged in (body[:-5], body + b"\0", body + body, zlib.compress(b"a"), b"plain", body[:30] + b"x" + body[31:]):
        answer = sent(addresses[0], damaged, "gzip")
        assert answer.status_code == 400 and "gzip" in answer.json()["detail"], damaged


def test_a_body_that_comes_too_slowly(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_LIMIT_S", 0.3)
    received = raw(addresses[0], head(1_000, f"Authorization: Bearer {KEY}\r\n"), b"{")
    assert b" 408 " in received.split(b"\r\n")[0] and b"application/problem+json" in received


def test_an_internal_error_has_the_headers_of_every_answer(addresses: list[str]) -> None:
    """Without those of CORS, a page of another origin would see no more than a failed request."""
    answer = requests.get(f"{addresses[0]}/v1/broken", headers={**KNOWN, "Origin": PAGE}, timeout=10)
    assert answer.status_code == 500 and answer.json()["status"] == 500
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE


def test_a_body_is_read_for_routes_that_take_one(addresses: list[str]) -> None:
    """Others need no key, so that anybody could make the server hold bodies."""
    for path in ("/healthz", "/"):
        answer = requests.post(f"{addresses[0]}{path}", data=b"x" * 2 * LIMIT, timeout=10)
        assert answer.status_code == 405
