"""What stands before the API, where a proxy has put it under a prefix; and errors that come from another process.

python -m pytest tests/serving/test_guard.py
"""

import threading
import time
from collections.abc import Iterator

import pytest
import ray
import requests
import uvicorn

from axml_ray.settings import SettingsError
from serve_app.api import make_api
from serve_app.fan_out import FanOut
from serve_app.guard import keys_of_environment
from serve_app.service import Service
from serve_app.settings import ServingSettings

KEY = "the-key"


def far(message: str) -> None:
    """Raise it in a process of Ray's."""

    @ray.remote(num_cpus=0.1)
    def refuse() -> None:
        raise SettingsError(message)

    ray.get(refuse.remote())


@pytest.fixture(scope="module")
def addresses(ray_cluster: None) -> Iterator[list[str]]:
    """The API with a key, under no prefix and under `/tags`; it has no trees, which nothing here needs."""
    servers = []
    for prefix in ("", "/tags"):
        app = make_api(Service(ServingSettings(), FanOut([], 1, 1)), [KEY])
        app.get("/far")(lambda: far("labels: no label is called 'x'"))
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
        known = {"Authorization": f"Bearer {KEY}"}
        assert requests.get(f"{address}/v1/examples", headers=known, timeout=60).json() == []
        for path, inline in (("/docs", True), ("/healthz", False)):
            answer = requests.get(f"{address}{path}", timeout=60)
            assert answer.status_code == 200
            assert ("unsafe-inline" in answer.headers["content-security-policy"]) == inline


def test_an_error_of_another_process_is_its_message_alone(addresses: list[str]) -> None:
    answer = requests.get(f"{addresses[0]}/far", timeout=60)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "labels: no label is called 'x'"
    assert answer.json()["errors"] == [{"field": "labels", "message": "no label is called 'x'"}]
