"""A tree each in a process of its own: killed, away, replaced under load; too much load; keys; the end."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from descendants import descendants
from intruder import assert_refused, without_ray
from ports import free_port
from small_server import MEMBERS, SMALL

from axml_ray import Tagger
from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.runs.run import Run
from serve_app.edition import Edition
from serve_app.fan_out import FanOut
from serve_app.members import Members

ROOT = Path(__file__).parents[2]
SECONDS = 90


@contextmanager
def application(address: str, name: str, bundle: Path, **settings: Any) -> Iterator[str]:
    """An application of the test's own; gives its address."""
    from ray import serve

    from serve_app.app import build

    args = {"bundle": str(bundle), **SMALL, **settings}
    serve.run(build(args), name=name, route_prefix=f"/{name}")
    try:
        yield f"{address}/{name}"
    finally:
        serve.delete(name)


class Load:
    """Clients that ask one text after the other until they are told to stop; every answer is kept."""

    def __init__(self, url: str, text: str, clients: int = 4):
        self.url, self.text, self.answers = url, text, list[requests.Response]()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self._clients = [self._pool.submit(self._run) for _ in range(clients)]

    def _run(self) -> None:
        with requests.Session() as session:
            while not self._stop.is_set():
                self.answers.append(session.post(f"{self.url}/v1/tag", json={"text": self.text}, timeout=SECONDS))
                time.sleep(0.01)  # without it, clients take the cores from a replica that starts

    def until(self, holds: Any, what: str) -> None:
        """Go on until some answers have come for which it holds."""
        end, seen = time.monotonic() + SECONDS, len(self.answers)
        while not any(holds(one) for one in self.answers[seen:]):
            assert time.monotonic() < end, what
            assert not any(client.done() for client in self._clients), "a client failed"
            time.sleep(0.02)

    def stop(self) -> list[requests.Response]:
        self._stop.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()
        return self.answers


def used(count: int) -> Any:
    return lambda answer: answer.status_code == 200 and answer.json()["members_used"] == count


def process_of(deployment: str) -> int:
    """The process of a replica, by the name that Ray gives it."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if (directory / "cmdline").read_bytes().startswith(f"ray::ServeReplica:{deployment}".encode()):
                return int(directory.name)
        except OSError:
            continue
    raise AssertionError(f"no process of {deployment}")


@pytest.mark.fault(
    "replica of one tree killed under load", "serving", data_lost="none; answers of fewer trees meanwhile"
)
@pytest.mark.fault("clients that leave before their answer", "serving")
@pytest.mark.slow
def test_clients_that_leave_and_a_killed_tree_cost_no_answer(
    serve_address: str, serving_bundle: Path, texts: list[str]
) -> None:
    with application(serve_address, "apart", serving_bundle, colocate_members=False, time_limit_s=5) as url:
        load = Load(url, texts[0])
        load.until(used(MEMBERS), "all members")
        # As the page leaves with each text that is tagged before the former's answer has come.
        left, end = 0, time.monotonic() + 3
        while time.monotonic() < end:
            with suppress(requests.Timeout):
                requests.post(f"{url}/v1/tag", json={"texts": texts[:8]}, timeout=0.01)
                continue
            left += 1
        assert left > 10
        load.until(used(MEMBERS), "an answer after they left")
        os.kill(process_of("apart:tree-2"), signal.SIGKILL)
        load.until(used(MEMBERS - 2), "the others")
        load.until(used(MEMBERS), "the tree that came back")
        answers = load.stop()
        assert Counter(answer.status_code for answer in answers) == {200: len(answers)}
        assert {answer.json()["members"] for answer in answers} == {MEMBERS}
        # Fewer members, and yet scores that mean the same.
        labels = {tuple(one["label"] for one in answer.json()["results"][0]["labels"][:1]) for answer in answers}
        assert len(labels) <= 2


@pytest.mark.fault("replica of all trees killed under load", "serving", work_repeated="the requests in flight")
@pytest.mark.slow
def test_killed_trees_that_were_together_and_a_new_bundle_cost_no_answer(
    serve_address: str, serving_bundle: Path, served_run: Run, texts: list[str], tmp_path: Path
) -> None:
    from ray import serve

    from serve_app.app import build

    export_bundle(served_run, tmp_path / "next", weights="bfloat16")
    with application(serve_address, "whole", serving_bundle, time_limit_s=SECONDS) as url:
        load = Load(url, texts[0])
        load.until(used(MEMBERS), "an answer")
        first = load.answers[0].json()["edition"]
        os.kill(process_of("whole:members"), signal.SIGKILL)
        load.until(used(MEMBERS), "an answer from a call that began after the kill")
        args = {"bundle": str(tmp_path / "next"), **SMALL, "time_limit_s": SECONDS}
        serve.run(build(args), name="whole", route_prefix="/whole")
        load.until(lambda answer: answer.json()["edition"] != first, "the next edition")
        answers = load.stop()
        assert Counter(answer.status_code for answer in answers) == {200: len(answers)}
        assert len({answer.json()["edition"] for answer in answers}) == 2
        assert answers[-1].json()["edition"] == requests.get(f"{url}/v1/model", timeout=SECONDS).json()["edition"]


@pytest.mark.fault("hung replica", "serving", work_repeated="the requests in flight")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped process", "stuck thread", "failed GPU"])
def test_a_hung_replica_is_replaced_within_half_a_minute(
    how: str,
    serve_address: str,
    serving_bundle: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck(Members):
        """Members whose next prediction never ends, or gets an error of CUDA, once there is a file."""

        def _failed(self, *opened: object) -> None:
            raise torch.AcceleratorError("an illegal memory access was encountered")

        async def rank(self, edition: Edition, tokens: Ragged) -> dict[str, TopK]:
            if (tmp_path / "hang").exists():
                (tmp_path / "hang").unlink()
                fault = self._failed if how == "failed GPU" else lambda *_: time.sleep(10 * SECONDS)
                await self._run(edition, fault)
            return await super().rank(edition, tokens)

    monkeypatch.setattr("serve_app.app.Members", Stuck)
    deployed = time.monotonic()
    with application(serve_address, "hung", serving_bundle) as url:
        most_s = 25 + time.monotonic() - deployed  # a start takes 5 s, or more on a busy machine

        def ask(seconds: float = 1) -> int:
            with suppress(requests.Timeout):
                return requests.post(f"{url}/v1/tag", json={"text": texts[0]}, timeout=seconds).status_code
            return 0

        assert ask(SECONDS) == 200  # the first request may find the replicas cold
        hung, began = process_of("hung:members"), time.monotonic()
        try:
            if how == "stopped process":
                os.kill(hung, signal.SIGSTOP)
            else:
                (tmp_path / "hang").touch()
            # The error comes at once, or later on a busy machine; a hung replica gives no answer at all.
            assert ask(most_s) == 500 if how == "failed GPU" else ask() == 0
            while ask() != 200 or (how == "failed GPU" and Path(f"/proc/{hung}").exists()):
                assert time.monotonic() - began < most_s
        finally:
            with suppress(ProcessLookupError):
                os.kill(hung, signal.SIGKILL)
        assert ask(most_s) == 200


@pytest.mark.fault("failed roll-out", "serving")
@pytest.mark.slow
def test_a_failed_roll_out_shows_in_the_status_while_the_old_bundle_answers(
    serve_address: str, serving_bundle: Path, served_run: Run, texts: list[str], tmp_path: Path
) -> None:
    from ray import serve

    from serve_app.app import build

    export_bundle(served_run, tmp_path / "next", weights="bfloat16")
    with application(serve_address, "failing", serving_bundle) as url:
        load = Load(url, texts[0], clients=1)
        load.until(used(MEMBERS), "an answer")
        deployed = build({"bundle": str(tmp_path / "next"), **SMALL})
        [weights, *_] = sorted((tmp_path / "next" / "members").rglob("*.safetensors"))
        os.truncate(weights, 100)  # after its checksum was verified
        with pytest.raises(RuntimeError):
            serve.run(deployed, name="failing", route_prefix="/failing")
        assert serve.status().applications["failing"].status == "DEPLOY_FAILED"
        # The service gives up on members that do not open; their own deployment may still be trying then.
        end = time.monotonic() + SECONDS
        while (members := serve.status().applications["failing"].deployments["members"]).status == "UPDATING":
            assert time.monotonic() < end
            time.sleep(0.2)
        assert members.status == "DEPLOY_FAILED"
        assert weights.name in members.message
        load.until(used(MEMBERS), "an answer after the failure")
        answers = load.stop()
        assert Counter(answer.status_code for answer in answers) == {200: len(answers)}
        assert len({answer.json()["edition"] for answer in answers}) == 1
        serve.run(build({"bundle": str(serving_bundle), **SMALL}), name="failing", route_prefix="/failing")
        assert serve.status().applications["failing"].status == "RUNNING"
        assert requests.post(f"{url}/v1/tag", json={"text": texts[0]}, timeout=SECONDS).status_code == 200


def test_a_damaged_bundle_is_not_deployed(serving_bundle: Path, tmp_path: Path) -> None:
    from serve_app.app import build

    with pytest.raises(SettingsError, match="no bundle"):
        build({"bundle": str(tmp_path)})
    with pytest.raises(SettingsError, match="bundle: missing"):
        build({})
    with pytest.raises(SettingsError, match="replica: no such setting"):
        build({"bundle": str(serving_bundle), "replica": 2})
    with pytest.raises(SettingsError, match=r"max_queued_texts: .*given: '0'"):
        build({"bundle": str(serving_bundle), "max_queued_texts": "0"})
    with pytest.raises(SettingsError, match="max_replicas is 1, below replicas"):
        build({"bundle": str(serving_bundle), "replicas": 2, "max_replicas": 1})


@pytest.mark.fault("more requests than the server can answer", "serving", data_lost="none; refused with 503")
def test_more_than_it_can_do_is_refused_and_told_when(
    serve_address: str, serving_bundle: Path, texts: list[str], tagger: Tagger
) -> None:
    few = {"max_queued_texts": 1}
    kinds: list[dict[str, Any]] = [{}, {"labels": list(tagger.labels)}, {"explain": True}]
    with application(serve_address, "busy", serving_bundle, **few) as url, ThreadPoolExecutor(24) as pool:
        for kind in kinds:
            content = {"texts": texts[:40], **kind}

            def ask(number: int, content: dict[str, Any] = content) -> requests.Response:
                return requests.post(f"{url}/v1/tag", json=content, timeout=SECONDS)

            answers = list(pool.map(ask, range(48)))
            counted = Counter(answer.status_code for answer in answers)
            assert set(counted) == {200, 503}, (list(kind), counted)
            busy = next(answer for answer in answers if answer.status_code == 503)
            assert int(busy.headers["retry-after"]) >= 1
            assert busy.headers["content-type"] == "application/problem+json"
            assert ask(0).status_code == 200


@pytest.mark.fault("request that kills every replica", "serving")
def test_a_question_that_ends_every_replica_is_given_up(ray_cluster: None, serve_address: str) -> None:
    from ray import serve

    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Fragile:
        async def rank(self, edition: Edition) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    handle = serve.run(Fragile.bind(), name="fragile", route_prefix=None)
    try:
        with pytest.raises(TimeoutError):
            asyncio.run(FanOut([handle], limit_s=2.0).call("rank", Edition("nowhere", "none")))
    finally:
        serve.delete("fragile")


def test_an_answer_that_would_come_too_late(serve_address: str, serving_bundle: Path, texts: list[str]) -> None:
    with application(serve_address, "late", serving_bundle, time_limit_s=0.0005) as url:
        late = requests.post(f"{url}/v1/tag", json={"texts": texts[:40], "explain": True}, timeout=SECONDS)
        assert late.status_code == 504 and late.headers["content-type"] == "application/problem+json"
        assert requests.get(f"{url}/healthz", timeout=SECONDS).status_code == 200


def assert_answers_again(url: str) -> None:
    """Assert that a URL is answered with 200 within `SECONDS`, though the server does not listen at first."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with suppress(requests.ConnectionError):
            if requests.get(url, timeout=SECONDS).status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"{url} was not answered within {SECONDS} s")


@pytest.mark.fault("SIGTERM", "serving")
@pytest.mark.slow
def test_a_server_of_its_own(serve_address: str, serving_bundle: Path, texts: list[str], tmp_path: Path) -> None:
    """`python -m serve_app`: loopback, keys, and an end that answers what is under way, and stops nothing of others."""
    from ray import serve

    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Neighbour:
        async def __call__(self) -> str:
            return "here"

    neighbour = serve.run(Neighbour.bind(), name="neighbour", route_prefix=None)
    port = free_port()
    words = [f"--bundle={serving_bundle}", f"--port={port}", "--cpus=0.1"]
    environment = without_ray(HOME=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-m", "serve_app", *words],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "AXML_RAY_API_KEYS": "first-key, second-key"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = next(line for line in process.stdout if line.startswith(("Serving", "error")))
        assert f"http://127.0.0.1:{port}" in said, said
        url = f"http://127.0.0.1:{port}"
        for given in (None, "Bearer", "Bearer wrong", "Basic first-key", "Bearer first-key2", "Bearer \u00e4".encode()):
            answer = requests.get(f"{url}/v1/model", headers={"Authorization": given} if given else {}, timeout=SECONDS)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert requests.get(f"{url}/", timeout=SECONDS).status_code == 200
        assert requests.get(f"{url}/readyz", timeout=SECONDS).status_code == 200
        if sys.platform == "linux":
            assert_refused(process.pid, tmp_path)
        known = {"Authorization": "Bearer second-key"}
        assert requests.get(f"{url}/v1/model", headers=known, timeout=SECONDS).status_code == 200
        if sys.platform == "linux":
            # The replica that replaces the ingress listens on the same port, where connections of the first linger.
            [ingress] = descendants(process.pid, b"ray::ServeReplica:axml-ray:ingress")
            os.kill(ingress, signal.SIGKILL)
            assert_answers_again(f"{url}/readyz")

        def ask(number: int) -> int:
            content = {"texts": texts[:40], "explain": True}
            return requests.post(f"{url}/v1/tag", json=content, headers=known, timeout=SECONDS).status_code

        second = subprocess.run(
            [sys.executable, "-m", "serve_app", *words],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert second.returncode == 2 and second.stderr.startswith(f"error: port: {port} is in use")
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, number) for number in range(8)]
            while not any(one.done() for one in asked):
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGTERM)
            codes = [one.result() for one in asked]
        # What came before the signal was answered; what came after it was refused.
        assert codes[0] == 200 and set(codes) <= {200, 503}, codes
        left = process.stdout.read().splitlines()
        assert process.wait(timeout=SECONDS) == 0
        assert not [line for line in left if "retries" in line], left
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{url}/healthz", timeout=SECONDS)
        assert neighbour.remote().result(timeout_s=SECONDS) == "here"
    finally:
        process.kill()
        serve.delete("neighbour")
