"""Run: pytest tests/inference/test_hub.py

Bundles published and downloaded by the Hub's own client, against a server with the Hub's API.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stub import LFS, TOKEN, Hub, running
from tiny_run import texts_of

from axml_ray import Tagger
from axml_ray.core import extras
from axml_ray.core.errors import SettingsError
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.bundle.manifest import CARD, LABELS, MANIFEST, TOKENIZER, BundleError

constants = pytest.importorskip("huggingface_hub.constants")
NAME = "ann/tiny"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, as the client finds it by HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_DISABLE_XET, which it has already read."""
    with running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield server


@pytest.fixture
def published(hub: Hub, bundle_directory: Path) -> Hub:
    """That hub with a public bundle."""
    Tagger.load(bundle_directory).push_to_hub(NAME, token=TOKEN)
    return hub


def change(hub: Hub, **files: bytes | None) -> None:
    """Commit changed files, named with two underscores for each dot, or remove them."""
    repository = hub.repositories[NAME]
    changed = repository.files | {name.replace("__", "."): content for name, content in files.items()}
    repository.commit({name: content for name, content in changed.items() if content is not None}, "by hand")


def test_a_published_bundle_predicts_the_same(hub, bundle_directory, tiny_run, monkeypatch):
    mine = Tagger.load(bundle_directory)
    url = mine.push_to_hub(NAME, private=True, token=TOKEN, commit_message="The first")
    repository = hub.repositories[NAME]
    assert url == f"{hub.endpoint}/{NAME}/commit/{repository.head}"
    assert repository.private and repository.messages == ["initial commit", "The first"]
    names = {path.relative_to(bundle_directory).as_posix() for path in bundle_directory.rglob("*") if path.is_file()}
    assert {CARD, MANIFEST} < names and set(repository.files) == names | {".gitattributes"}
    assert repository.large == {name for name in names if name.endswith(LFS)}
    for name in names:
        assert repository.files[name] == (bundle_directory / name).read_bytes()
    texts = texts_of(tiny_run, "test")[:20]
    theirs = Tagger.from_pretrained(NAME, token=TOKEN)
    assert theirs.tag(texts) == mine.tag(texts)
    assert (theirs.bundle.directory / TOKENIZER).is_symlink()
    assert not (theirs.bundle.directory / ".gitattributes").exists()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert Tagger.from_pretrained(NAME).tag(texts) == mine.tag(texts)
    assert hub.requests == []


def test_a_newer_bundle_replaces_an_older_one(published, bundle_directory):
    repository = published.repositories[NAME]
    first = repository.head
    change(published, **{"trees/7__safetensors": b"of an earlier bundle", "LICENSE": b"A licence."})
    assert Tagger.from_pretrained(NAME)
    Tagger.load(bundle_directory).push_to_hub(NAME, token=TOKEN)
    assert "trees/7.safetensors" not in repository.files and repository.files["LICENSE"] == b"A licence."
    newest, oldest = Tagger.from_pretrained(NAME), Tagger.from_pretrained(NAME, revision=first)
    assert (newest.bundle.directory.name, oldest.bundle.directory.name) == (repository.head, first)
    newest.push_to_hub("ann/copy", token=TOKEN)  # from the client's cache, where files are links
    copied, original = published.repositories["ann/copy"].files, repository.files
    assert copied == {name: content for name, content in original.items() if name != "LICENSE"}


def test_what_is_verified(published, bundle_directory):
    change(published, **{CARD.replace(".", "__"): b"# Edited on the Hub\n"})
    tagger = Tagger.from_pretrained(NAME)
    assert (tagger.bundle.directory / CARD).read_text() == "# Edited on the Hub\n"
    content = bytearray((bundle_directory / LABELS).read_bytes())
    content[len(content) // 2] ^= 1
    change(published, **{LABELS.replace(".", "__"): bytes(content)})
    with pytest.raises(BundleError, match=f"{LABELS}: its checksum"):
        Tagger.from_pretrained(NAME)
    change(published, **{LABELS.replace(".", "__"): None})
    with pytest.raises(BundleError, match=f"{LABELS}: missing"):
        Tagger.from_pretrained(NAME)


def test_a_changed_bundle_is_not_published(hub, bundle_directory, tmp_path):
    copy = Path(shutil.copytree(bundle_directory, tmp_path / "bundle"))
    tagger = Tagger.load(copy)
    (copy / CARD).write_text("---\nlicense: mit\n---\n# Edited\n")
    tagger.push_to_hub(NAME, token=TOKEN)
    assert hub.repositories[NAME].files[CARD].endswith(b"# Edited\n")
    (copy / TOKENIZER).write_bytes((copy / TOKENIZER).read_bytes() + b" ")
    with pytest.raises(BundleError, match=TOKENIZER):
        tagger.push_to_hub(NAME, token=TOKEN)
    assert len(hub.repositories[NAME].commits) == 2


def test_refusals_are_one_error(published, bundle_directory, tiny_run, tmp_path):
    published.repositories["ann/other"] = type(published.repositories[NAME])(private=False)
    published.repositories["ann/other"].commit({"config.json": b"{}"}, "not a bundle")
    published.repositories["ann/secret"] = type(published.repositories[NAME])(private=True)
    mine = Tagger.load(bundle_directory)
    unheard_of = Tagger.load(export_bundle(tiny_run, tmp_path / "bundle", licence="Unheard-Of").directory)
    for wrong in (
        lambda: Tagger.from_pretrained("ann/nothing"),
        lambda: Tagger.from_pretrained("ann/secret"),
        lambda: Tagger.from_pretrained("ann/other"),
        lambda: Tagger.from_pretrained("no/such/id"),
        lambda: Tagger.from_pretrained(NAME, revision="v9"),
        lambda: mine.push_to_hub(NAME),
        lambda: mine.push_to_hub(NAME, token="wrong"),
        lambda: unheard_of.push_to_hub(NAME, token=TOKEN),
    ):
        with pytest.raises(SettingsError) as raised:
            wrong()
        assert str(raised.value).startswith(("ann/", "no/such/id")) and "\n" not in str(raised.value)
    assert len(published.repositories[NAME].commits) == 2


def test_a_directory_comes_first(hub, bundle_directory, monkeypatch):
    monkeypatch.chdir(bundle_directory.parent)
    assert Tagger.from_pretrained(bundle_directory.name).bundle.directory == bundle_directory
    with pytest.raises(BundleError, match="no bundle"):
        Tagger.from_pretrained(Path(NAME))
    assert hub.requests == []


def test_without_the_client(bundle_directory, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for use in (lambda: Tagger.from_pretrained(NAME), lambda: Tagger.load(bundle_directory).push_to_hub(NAME)):
        with pytest.raises(SettingsError, match=r'huggingface_hub: not installed; run: pip install "axml-ray\[hub\]"'):
            use()
