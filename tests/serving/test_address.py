"""The address on which a server listens; and the command line, as processes that end before Ray starts.

python -m pytest tests/serving/test_address.py
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from axml_ray.core.errors import SettingsError
from serve_app.__main__ import ServerSettings, check_reach
from serve_app.listener import check_address

ROOT = Path(__file__).parents[2]


def listener(family: int, host: str, share: bool) -> socket.socket:
    """A server as another program's; one that shares its port as Serve's proxies do."""
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind((host, 0))
    server.listen()
    return server


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "serve_app", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("theirs", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("ours", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_port_in_use(theirs: str, ours: str, share: bool) -> None:
    with listener(socket.AF_INET, theirs, share) as server:
        port = server.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^port: {port} is in use on {ours}"):
            check_address(ours, port)
    check_address(ours, port)


def test_a_port_whose_connections_have_just_ended_is_free() -> None:
    with listener(socket.AF_INET, "127.0.0.1", False) as server:
        client = socket.create_connection(server.getsockname())
        served, _ = server.accept()
        port = server.getsockname()[1]
        served.close()  # the first to close keeps the address for a minute
        client.close()
    assert check_address("127.0.0.1", port)


def test_addresses_that_are_none() -> None:
    with pytest.raises(SettingsError, match=r"^host: can't listen on 192\.0\.2\.1, port 8000"):
        check_address("192.0.2.1", 8000)
    with pytest.raises(SettingsError, match=r"^host: 'no\.such\.host\.invalid' can't be resolved"):
        check_address("no.such.host.invalid", 8000)


@pytest.mark.parametrize(("host", "keys", "warned"), [("127.0.0.1", "", 0), ("0.0.0.0", "", 1), ("0.0.0.0", "a", 0)])
def test_a_server_for_everyone_without_keys_is_warned_of(
    host: str, keys: str, warned: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AXML_RAY_API_KEYS", keys)
    with listener(socket.AF_INET, "127.0.0.1", False) as server:
        port = server.getsockname()[1]
    check_reach(ServerSettings(bundle=ROOT, host=host, port=port))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == warned and all("AXML_RAY_API_KEYS" in line and host in line for line in said)


@pytest.mark.processes
def test_one_line_before_ray_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(socket.AF_INET, "127.0.0.1", True) as server:
        port = server.getsockname()[1]
        done = serve("--bundle", str(tmp_path), "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: port: {port} is in use") and done.stderr.count("\n") == 1
    done = serve("--bundel", str(tmp_path))
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "'--bundle'" in done.stderr
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # onto a cluster of others, `serve deploy` deploys
    done = serve("--bundle", str(tmp_path))
    assert done.returncode == 2 and done.stderr.startswith("error: RAY_ADDRESS: ") and done.stderr.count("\n") == 1


@pytest.mark.processes
def test_help_lists_every_setting() -> None:
    done = serve("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: python -m serve_app ")
    named = re.findall(r"^  --([\w-]+) ", done.stdout, re.MULTILINE)
    flags = [name.replace("-", "_") for name in named if name != "verbose"]
    assert sorted(flags) == sorted(ServerSettings.model_fields) and flags[:3] == [
        "bundle",
        "host",
        "port",
    ]
    shown = " ".join(done.stdout.split())
    for name, field in ServerSettings.model_fields.items():
        assert field.description and " ".join(field.description.split()) in shown
        if name not in ("bundle", "revision") and field.default is not None:
            assert f"(default {str(field.default).lower()})" in shown
    assert "(required)" in shown


@pytest.mark.processes
def test_make_serve_takes_host_and_port() -> None:
    for words, expected in [
        ((), "--host 127.0.0.1 --port 8000"),
        (("HOST=::1", "PORT=8124"), "--host ::1 --port 8124"),
    ]:
        command = ["make", "-n", "serve", *words]
        environment = {**os.environ, "HOST": "a-shell's"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert expected in " ".join(done.stdout.split())
