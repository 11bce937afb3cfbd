"""The record of how a run was started, and the checks that a later start agrees with it.

Contents count, not places: the project, or an input of it, may have been moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from axml_ray.core.errors import SettingsError
from axml_ray.core.run_layout import RunLayout
from axml_ray.core.run_manifest import read_run_manifest
from axml_ray.corpus.store import Corpus
from axml_ray.settings import Experiment, stored
from axml_ray.settings.configuration import FREE, differences, read_yaml
from axml_ray.settings.corpus import INPUTS

ADDED = ("name", "ensemble.trees", "ensemble.combiner", "members", "features")
"""Settings that may change when a run is started again, since no network depends on them."""
FIX = "choose another --name, or remove the directory"


@dataclass(frozen=True)
class RunRecord:
    """The record in a run's directory, before the run is started or started again.

    Attributes:
        directory: directory of the run.
        settings: the stored settings, as `stored` returns them; None if the run was not started before.
        manifest: the run's manifest, empty likewise.
    """

    directory: Path
    settings: dict[str, Any] | None
    manifest: dict[str, Any]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the record of a run, which is empty if there is none.

        Raises:
            SettingsError: the directory holds a run of another version.
        """
        path = RunLayout(directory).settings
        if not path.exists():
            return cls(directory, None, {})
        return cls(directory, read_yaml(path), read_run_manifest(directory))

    def _places(self, settings: Experiment) -> list[str]:
        """Return the settings that name files or directories, whose contents are compared instead."""
        assert self.settings is not None
        places = [f"corpus.{name}" for name in INPUTS]
        if self.settings.get("continue_from") and settings.continue_from:
            places.append("continue_from")
        vectors_before = (self.settings.get("corpus") or {}).get("word_vectors", "train")
        if vectors_before not in ("train", "random") and settings.corpus.word_vectors_path:
            places.append("corpus.word_vectors")
        return places

    def _refuse(self, changed: list[str]) -> None:
        if changed:
            raise SettingsError(
                f"{self.directory}: this run was made with other settings ({', '.join(changed)}); {FIX}"
            )

    def check_settings(self, settings: Experiment, groups: Sequence[str] | None = None) -> None:
        """Raise SettingsError if a setting differs that trained parts depend on, apart from places.

        Only settings of some groups are compared, if any are given.
        """
        if self.settings is None:
            return
        changed = set(differences(self.settings, stored(settings), (*FREE, *ADDED))) - set(self._places(settings))
        self._refuse(sorted(key for key in changed if groups is None or key.partition(".")[0] in groups))

    def check_inputs(self, settings: Experiment, key: str) -> None:
        """Raise SettingsError if other places are named than before, and their contents are not the same.

        The same places may have other contents from which the corpus comes out the same; `check_corpus` tells.

        Args:
            settings: the settings.
            key: key of the settings and inputs of the corpus.
        """
        if self.settings is None or key == self.manifest["inputs"]:
            return
        changed = sorted(
            set(differences(self.settings, stored(settings), (*FREE, *ADDED))) & set(self._places(settings))
        )
        self._refuse(changed)

    def check_corpus(self, corpus: Corpus) -> None:
        """Raise SettingsError for another corpus: training all levels anew would overwrite the finished ones."""
        if self.settings is not None and corpus.fingerprint != self.manifest["corpus"]:
            raise SettingsError(
                f"{self.directory}: this run was started with another corpus than the one prepared now (other "
                "texts or packages); choose another --name and "
                "--corpus.name, or remove the directory"
            )

    def check_continued(self, settings: Experiment, trees: list[str]) -> None:
        """Raise SettingsError if the trees or networks that this run continues are not those that it was started from.

        Args:
            settings: the settings.
            trees: their contents now (`Run.tree_contents`).
        """
        before = self.manifest.get("continues", trees)
        if any(now != old for now, old in zip(trees, before, strict=False)):
            raise SettingsError(
                f"continue_from: the label trees or networks in {settings.continue_from} are not those that "
                f"{self.directory} was started from; {FIX}"
            )
