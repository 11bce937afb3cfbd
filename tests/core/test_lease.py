"""Of several jobs on one directory, one owns it; an owner that was silent for too long publishes nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from axml_ray.core import lease as leases
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import check_fences, fences, whole_directory, whole_file, write_json
from axml_ray.core.lease import Lease, LeaseLostError, lease_of, own

OWNER = """
import sys, time
from pathlib import Path
from axml_ray.core.files import write_json
from axml_ray.core.lease import own

directory = Path(sys.argv[1])
with own(directory):
    for number in range(10_000):
        write_json(directory / "state.json", number)
        time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of three seconds, in this process and in those that it starts."""
    monkeypatch.setenv("AXML_RAY_LEASE_SECONDS", "3")
    monkeypatch.setattr(leases, "LEASE_SECONDS", 3.0)
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.1)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_second_owner_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with own(run) as lease:
        began = time.monotonic()
        with pytest.raises(SettingsError, match=f"process {os.getpid()}"), own(run):
            pass
        assert time.monotonic() - began < 2
        lease.check()
        write_json(run / "a.json", 1)
    assert files(run) == {"a.json": b"1\n"} and not fences
    with pytest.raises(LeaseLostError):
        lease.check()  # a worker that outlives its job


def test_a_directory_in_which_nothing_was_written_is_gone(tmp_path: Path) -> None:
    with pytest.raises(KeyError), own(tmp_path / "run"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_one_of_many_starts_at_once_wins(tmp_path: Path) -> None:
    won, end = [], threading.Event()

    def start() -> None:
        try:
            with own(tmp_path) as lease:
                won.append(lease)
                end.wait(20)
        except SettingsError:
            pass

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    while sum(thread.is_alive() for thread in threads) > 1:
        time.sleep(0.05)
    (lease,) = won
    lease.check()
    end.set()
    for thread in threads:
        thread.join()


def test_a_worker_in_another_process_is_fenced(tmp_path: Path) -> None:
    with own(tmp_path):
        lease = lease_of(tmp_path)
        assert lease is not None
    # What a pickled lease does in a worker.
    Lease(lease.directory, lease.token).enforce()
    try:
        with pytest.raises(LeaseLostError):
            check_fences(tmp_path / "tree-0" / "level-1")
        with pytest.raises(LeaseLostError):
            write_json(tmp_path / "run.json", 1)
        check_fences(tmp_path.parent / "other")
    finally:
        del fences[tmp_path]
    assert files(tmp_path) == {}


@pytest.mark.parametrize("whole", [whole_file, whole_directory])
def test_what_was_being_written_at_a_takeover_is_never_published(tmp_path: Path, whole) -> None:
    """Also by a writer that checked its lease just before: its temporary file is no longer there."""
    run = tmp_path / "run"
    with own(run) as lease:
        fences.clear()  # as if the check came just before the takeover
        with pytest.raises(FileNotFoundError), whole(run / "level-1") as work:
            (work / "rows" if whole is whole_directory else work).write_bytes(b"late")
            lease.file.unlink()
            with own(run):
                write_json(run / "a.json", 1)
        fences[run] = lease
        with pytest.raises(LeaseLostError):
            lease.check()
    del fences[run]
    assert files(run) == {"a.json": b"1\n"}


@pytest.mark.fault("dead or silent owner of a directory", "files")
@pytest.mark.processes
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_silent_owner_is_replaced_and_writes_nothing_more(tmp_path: Path, sign: signal.Signals) -> None:
    run = tmp_path / "run"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(run)], stderr=subprocess.PIPE, text=True)
    try:
        while not (run / "state.json").exists():
            time.sleep(0.02)
        with pytest.raises(SettingsError, match=f"process {owner.pid}"), own(run):
            pass
        owner.send_signal(sign)
        if sign == signal.SIGKILL:
            owner.wait()
        began = time.monotonic()
        with own(run) as lease:
            took = time.monotonic() - began
            # A process of this machine that has ended need not be waited for.
            assert took < 1 if sign == signal.SIGKILL else 3 <= took < 6
            before = files(run)
            if sign == signal.SIGSTOP:
                owner.send_signal(signal.SIGCONT)
                said = owner.communicate(timeout=20)[1]
                assert owner.returncode == 1 and "LeaseLostError" in said.splitlines()[-1]
            lease.check()
            assert files(run) == before
    finally:
        owner.kill()
        owner.wait()
