"""What an operator uses: Serve's YAML files, the manifests, and the metrics for Prometheus."""

import asyncio
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from axml_ray.cli.parser import from_command_line, only_flags
from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import MANIFEST
from axml_ray.members.knn import NearestNeighbours
from axml_ray.settings.members import KINDS, Kind, KnnSettings
from serve_app.__main__ import ServerSettings, add_flags
from serve_app.edition import Edition, EditionError
from serve_app.members import Members
from serve_app.service import read_examples
from serve_app.settings import ApplicationSettings, ServingSettings

ROOT = Path(__file__).parents[2]
SECONDS = 60


@pytest.mark.parametrize("file", ["serve_app/serve.yaml", "deploy/rayservice.yaml"])
def test_files_of_serve_deploy(file: str) -> None:
    from ray.serve.schema import ServeDeploySchema

    from serve_app import app

    content = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    if "spec" in content:
        assert content["kind"] == "RayService"
        content = yaml.safe_load(content["spec"]["serveConfigV2"])
    [application] = ServeDeploySchema.model_validate(content).applications
    assert application.import_path == f"{app.__name__}:{app.build.__name__}"
    assert ApplicationSettings.from_arguments(application.args).max_queued_texts == ServingSettings().max_queued_texts
    assert ApplicationSettings.from_arguments({**application.args, "revision": 2}).revision == "2"  # as YAML has it
    if file.startswith("serve_app"):
        assert content["http_options"]["host"] == "127.0.0.1"
        assert read_examples(ROOT / application.args["examples"])


def test_the_manifest_of_a_training_runs_a_job_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = yaml.safe_load((ROOT / "deploy/rayjob.yaml").read_text(encoding="utf-8"))
    assert manifest["kind"] == "RayJob"
    words = manifest["spec"]["entrypoint"].split()
    for word in words:
        if word.startswith("/app/"):
            assert (ROOT / word.removeprefix("/app/")).is_file()
    monkeypatch.setenv("AXML_RAY_HOME", "/data")
    settings = from_command_line("", [word.replace("/app", str(ROOT)) for word in words[2:]])
    corpus = settings.corpus
    read = [*corpus.train, *corpus.valid, *corpus.test, corpus.label_names, corpus.word_vectors]
    assert len(read) == 5
    assert all(str(path).startswith("/data/") for path in (*read, settings.runs, settings.corpora))


def test_settings_of_the_command_line(tmp_path: Path) -> None:
    given = {"bundle": str(tmp_path), "colocate_members": "false", "port": "9000", "cpus": "0.25"}
    settings = ServerSettings.from_arguments(given)
    assert (settings.bundle, settings.colocate_members, settings.port, settings.cpus) == (tmp_path, False, 9000, 0.25)
    assert settings.host == "127.0.0.1"
    for wrong, said in [
        ({"port": "70000"}, "port: "),
        ({"hosts": "a"}, "hosts: no such setting; did you mean host"),
    ]:
        with pytest.raises(SettingsError, match=said):
            ServerSettings.from_arguments({**given, **wrong})
    with pytest.raises(SettingsError, match="bundle: missing"):
        ServerSettings.from_arguments({"port": "80"})


@pytest.mark.parametrize("name", ServerSettings.model_fields)
def test_every_setting_is_a_flag(name: str) -> None:
    for flag in {f"--{name}", f"--{name.replace('_', '-')}"}:
        assert vars(only_flags("", add_flags, [f"{flag}=1"])) == {name: "1"}


@pytest.mark.parametrize("line", ["{", "[]", '{"text": 1}', "\ufeffx"])
def test_examples_that_are_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text('{"text": "w1"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"^examples: \S+examples\.jsonl:2"):
        read_examples(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_examples(tmp_path / "none.jsonl")
    pq.write_table(pa.table({"text": ["w1"]}), path)
    with pytest.raises(SettingsError, match=r"^examples: \S+examples\.jsonl: expected JSON lines"):
        read_examples(path)


def test_a_bundle_that_went_away_is_not_the_requests_fault(serving_bundle: Path) -> None:
    members = Members(None, 1)
    for gone in (Edition("/nowhere", "none"), Edition(str(serving_bundle), "another")):
        with pytest.raises(EditionError, match=r"deploy again|no bundle"):
            asyncio.run(members.rank(gone, Ragged.from_rows([[2]])))
    assert not issubclass(EditionError, SettingsError)  # which the API answers with 422


def test_a_bundle_that_is_replaced_while_it_is_opened_is_not_used(
    serving_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(serving_bundle, tmp_path / "bundle")
    edition, members, open_members = Edition.checked(tmp_path / "bundle"), Members(None, 1), Bundle.ensemble

    def replaced_meanwhile(bundle: Bundle, *arguments: Any) -> Any:
        ensemble, manifest = open_members(bundle, *arguments), json.loads((bundle.directory / MANIFEST).read_text())
        (bundle.directory / MANIFEST).write_text(json.dumps({**manifest, "axml_ray": "another"}))
        return ensemble

    monkeypatch.setattr(Bundle, "ensemble", replaced_meanwhile)
    with pytest.raises(EditionError, match="deploy again"):
        asyncio.run(members.rank(edition, Ragged.from_rows([[2]])))


class SlowNeighbours(NearestNeighbours):
    """A member whose opening takes until the test has got its answers."""

    begun, go_on = threading.Event(), threading.Event()

    @classmethod
    def load(cls, *arguments: Any) -> NearestNeighbours:
        cls.begun.set()
        assert cls.go_on.wait(SECONDS)
        return super().load(*arguments)


def test_requests_are_answered_while_a_new_bundle_is_opened(
    serving_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "slow", Kind(KnnSettings, f"{__name__}:SlowNeighbours"))
    shutil.copytree(serving_bundle, tmp_path / "next")
    manifest = json.loads((tmp_path / "next" / "manifest.json").read_text())
    next(member for member in manifest["members"] if member["kind"] == "knn")["kind"] = "slow"
    (tmp_path / "next" / "manifest.json").write_text(json.dumps(manifest))
    old, new = Edition.checked(serving_bundle), Edition.checked(tmp_path / "next")
    texts, members = Ragged.from_rows([[2, 3, 4]]), Members(None, 1)

    async def roll_out() -> None:
        await members.reconfigure({"directory": old.directory, "checksum": old.checksum})
        rankings = await members.rank(old, texts)
        opening = asyncio.create_task(members.reconfigure({"directory": new.directory, "checksum": new.checksum}))
        # More than there are threads: all wait for one opening.
        early = [asyncio.create_task(members.rank(new, texts)) for _ in range(40)]
        await asyncio.to_thread(SlowNeighbours.begun.wait, SECONDS)
        async with asyncio.timeout(SECONDS / 2):
            for _ in range(3):
                again = await members.rank(old, texts)
                assert {name: each.labels.tolist() for name, each in again.items()} == {
                    name: each.labels.tolist() for name, each in rankings.items()
                }
            assert set(await members.ready(old)) == set(rankings)
        assert not opening.done() and not any(call.done() for call in early)
        SlowNeighbours.go_on.set()
        await opening
        for answer in await asyncio.gather(*early, members.rank(new, texts)):
            assert set(answer) == set(rankings)

    asyncio.run(roll_out())
