"""Corpus, run, predictions and bundle at a URL, each opened by a node that has nothing of it yet."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
import synthetic
from descendants import job_environment
from ports import free_port
from s3 import Bucket

from axml_ray.core.errors import SettingsError
from axml_ray.core.lease import own
from axml_ray.core.paths import absolute, cache, portable
from axml_ray.corpus.store import Corpus
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.tagger import Tagger
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load, read_settings
from axml_ray.workflow.evaluate import evaluate
from axml_ray.workflow.train import begin, prepare_corpus
from serve_app.edition import Edition
from serve_app.settings import ApplicationSettings


@pytest.fixture
def forget(bucket: Bucket) -> Callable[[], None]:
    """Return what makes this node another one, which has fetched nothing yet."""
    return lambda: shutil.rmtree(cache())


def test_a_run_at_a_url_scores_as_a_local_one(bucket: Bucket, forget: Callable[[], None], tmp_path: Path) -> None:
    url = f"s3://{bucket.name}"
    names = tmp_path / "texts" / "names.tsv"
    content = synthetic.experiment(
        tmp_path,
        members={"knn": {"weight": 0.3}, "linear_tree": {"weight": 0.3}},
        training={"precision": "float32", "epochs": [1]},
        ensemble={"trees": 1},
    )
    names.write_text("".join(f"label {number}\tname {number}\n" for number in range(synthetic.LABELS)))
    bucket.write("names.tsv", names.read_bytes())
    metrics = {}
    for place, label_names in ((str(tmp_path), str(names)), (url, f"{url}/names.tsv")):
        content |= {"runs": f"{place}/runs", "corpora": f"{place}/corpora"}
        content["corpus"] |= {"label_names": label_names}
        settings = load(None, **content)
        prepare_corpus(settings)
        if place == url:
            bucket.delete("corpora/small/labels.parquet")
            forget()
            prepare_corpus(settings)  # again, as it is incomplete
            forget()
        with own(settings.run_directory):
            run = begin(settings)
            fit_run(run)
        if place == url:
            forget()
        metrics[place] = evaluate(Run.open(settings.run_directory))
    here, there = metrics.values()
    # The files of a level have seconds, and the key of the predictions has the digest of these files.
    unlike = dict.fromkeys(("seconds", "made_by"))
    assert {**here, **unlike} == {**there, **unlike}
    assert {"metrics.json", "report/index.html", "tree-0/training.jsonl"} <= {
        name.removeprefix("runs/small/") for name in bucket.names()
    }

    forget()
    stored = read_settings(absolute(f"{url}/runs/small"))
    assert portable(stored.corpora) == f"{url}/corpora" and portable(stored.run_directory) == f"{url}/runs/small"
    forget()
    export_bundle(Run.open(stored), absolute(f"{url}/bundles/small"), "int8")
    forget()
    tagger = Tagger.load(f"{url}/bundles/small")
    tag = tagger.tag(["own3 family0 own3"], top_k=1)[0][0]
    assert (tag.label, tag.name) == ("label 3", "name 3")
    export_bundle(Run.open(stored), absolute(f"{url}/bundles/small"))  # replaces it
    forget()
    assert Tagger.load(f"{url}/bundles/small").bundle.manifest.weights == "float32"
    edition = Edition.checked(ApplicationSettings(bundle=f"{url}/bundles/small").bundle)
    forget()  # a replica on another node
    assert edition.open().labels.names[3].startswith("name")
    before = bucket.names()
    for other in ("bundles", "runs/small"):
        with pytest.raises(SettingsError, match="--to"):
            export_bundle(Run.open(stored), absolute(f"{url}/{other}"))
    assert bucket.names() == before


@pytest.mark.slow
def test_a_bundle_at_a_url_is_served(bucket: Bucket, tmp_path: Path) -> None:
    """By processes that have nothing of it yet."""
    url = f"s3://{bucket.name}"
    settings = load(
        None,
        **synthetic.experiment(tmp_path, members={"network_tree": {"weight": 0}, "knn": {"weight": 1}}),
    )
    run = Run(settings, prepare_corpus(settings))
    fit_run(run)
    export_bundle(run, absolute(f"{url}/bundles/small"))
    port = free_port()
    environment = job_environment(AXML_RAY_CACHE=str(tmp_path / "other"), AXML_RAY_API_KEYS="")
    command = [sys.executable, "-m", "serve_app", f"--bundle={url}/bundles/small", f"--port={port}", "--cpus=0.1"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stdout is not None
        assert next(server.stdout).startswith(f"Serving {url}/bundles/small ")
        content = {"texts": ["own3 family0 own3"], "top_k": 1}
        answer = requests.post(f"http://127.0.0.1:{port}/v1/tag", json=content, timeout=60)
        assert answer.status_code == 200 and '"label 3"' in answer.text
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def test_what_is_not_at_a_url_is_named_by_it(bucket: Bucket) -> None:
    place = absolute(f"s3://{bucket.name}/none")
    for attempt in (Corpus.open, read_settings, Tagger.load):
        with pytest.raises(SettingsError):
            attempt(place)
    assert bucket.names() == []
