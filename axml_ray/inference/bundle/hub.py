"""Publishes bundles on the Hugging Face Hub and downloads them, with the Hub's client (extra `hub`).

- A bundle is published as one commit, so that nobody downloads half of one. Files of an earlier bundle that the new one
  does not have are removed; other files of the repository, such as a licence, stay.
- A download lies in the client's cache, where files are links to blobs that revisions share. The bundle's checks accept
  these links, and verify all checksums. Only the files of the manifest are downloaded.
- The client reads the token, the cache's directory and the address of another hub from its environment: `HF_TOKEN`,
  `HF_HOME`, `HF_ENDPOINT`; `HF_HUB_OFFLINE=1` uses the cache alone.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axml_ray import __version__
from axml_ray.core.errors import SettingsError
from axml_ray.core.extras import require_extra
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import MANIFEST, check_contents, is_of_bundles, read_manifest

EXTRA, LIBRARY = "hub", "axml-ray"


def publish(
    bundle: Bundle, repo_id: str, *, private: bool | None, token: str | None, commit_message: str | None
) -> str:
    """Upload a bundle to a model repository, which is made if it does not exist, and return the URL of the commit.

    Raises:
        SettingsError: the extra is not installed, or the Hub refuses, or cannot be reached.
        BundleError: a file has changed since the bundle was exported.
    """
    require_extra(EXTRA)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    check_contents(bundle.directory, bundle.manifest)
    names = {name for name in (*bundle.manifest.files, MANIFEST) if (bundle.directory / name).is_file()}
    with _one_error(f"{repo_id}: cannot be published"):
        hub = HfApi(token=token, library_name=LIBRARY, library_version=__version__)
        repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id  # with the owner, if it had none
        stale = {name for name in hub.list_repo_files(repo_id) if is_of_bundles(name)} - names
        commit = hub.create_commit(
            repo_id,
            [
                *(CommitOperationAdd(name, bundle.directory / name) for name in sorted(names)),
                *(CommitOperationDelete(name) for name in sorted(stale)),
            ],
            commit_message=commit_message or f"Bundle {bundle.settings.name}, axml-ray {bundle.manifest.axml_ray}",
        )
    return str(commit.commit_url)


def download(repo_id: str, *, revision: str | None, token: str | None) -> Bundle:
    """Download a bundle, or what the cache lacks of it, and open it with all checks.

    Raises:
        SettingsError: the extra is not installed, there is no such repository or revision, or the Hub cannot be
            reached and the cache does not have it.
        BundleError: it is no bundle, or a file is missing or changed.
    """
    require_extra(EXTRA)
    from huggingface_hub import hf_hub_download, snapshot_download

    reason = f"{repo_id}: is no directory, and cannot be downloaded as a bundle"
    with _one_error(reason):
        manifest = hf_hub_download(
            repo_id, MANIFEST, revision=revision, token=token, library_name=LIBRARY, library_version=__version__
        )
    directory = Path(manifest).parent
    files = read_manifest(directory).files
    with _one_error(reason):
        # The directory is named by the commit, so the files are those of this manifest, whatever happens to a branch.
        snapshot_download(
            repo_id,
            revision=directory.name,
            token=token,
            allow_patterns=[MANIFEST, *files],
            library_name=LIBRARY,
            library_version=__version__,
        )
    # The client documents the path: <cache>/models--<owner>--<name>/snapshots/<commit>. Links lead to the blobs of the
    # repository or, of large files, to those that all repositories of the cache share.
    return Bundle.open(directory, cache=directory.parents[2])


@contextmanager
def _one_error(what: str) -> Iterator[None]:
    """Turn any error of the Hub's client into a SettingsError of one line, and leave out a warning."""
    with warnings.catch_warnings():
        # labels.parquet is part of the model, and not a data set.
        warnings.filterwarnings("ignore", message="It seems that you are about to commit a data file")
        try:
            yield
        # The client raises classes of its own, of its HTTP library and of Python, some of them plain Exception.
        except Exception as error:
            raise SettingsError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error
