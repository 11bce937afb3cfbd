"""A sweep: its settings, search space and method, and the manifest that its directory keeps of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.core.run_layout import RunLayout
from axml_ray.corpus.store import Corpus
from axml_ray.settings import Experiment, stored
from axml_ray.settings.configuration import differences
from axml_ray.tuning.space import Space

MANIFEST = "sweep.json"
FREE = ("settings.resources",)
"""Keys that may change when a sweep is continued."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A hyperparameter search: settings, search space and method; what `axml-ray tune --help` describes."""

    settings: Experiment
    """The settings that are not drawn."""
    space: Space
    name: str
    """Name of the sweep's directory below `settings.runs`."""
    trials: int = 20
    part: float = 0.25
    """Share of the training documents that a trial trains on; `settings.training.documents` overrides it."""
    search: Literal["random", "tpe"] = "tpe"
    early_stopping: bool = True
    grace: float = 1.0
    """Number of epochs of a level before ASHA's first rung."""
    reduction: float = 2.0
    """At each rung, ASHA lets 1 / `reduction` of the trials continue."""
    at_once: int | None = None
    """Number of concurrent trials; by default as many as fit on the cluster."""

    @property
    def directory(self) -> Path:
        """The directory of the sweep."""
        return self.settings.runs / self.name

    def documents(self, corpus: Corpus) -> int:
        """Return the number of training documents of a trial."""
        available = corpus.documents("train")
        return min(available, self.settings.training.documents or max(1, round(available * self.part)))

    def about(self, corpus: Corpus) -> dict[str, Any]:
        """Return the content of `sweep.json`: another start must agree with it except for the keys in `FREE`."""
        free = dict.fromkeys(("name", "runs", "corpora", "evaluation", "tracking", "features", "members"), True)
        # Its content identifies the corpus, not its path: the project may be moved.
        left_out: Any = {**free, "corpus": True, "ensemble": {"combiner"}}
        return {
            "space": list(self.space.names),
            "space_text": self.space.fingerprint,
            "search": self.search,
            "early_stopping": self.early_stopping,
            "grace": self.grace,
            "reduction": self.reduction,
            "documents": self.documents(corpus),
            "corpus": corpus.fingerprint,
            "trials": self.trials,
            "settings": stored(self.settings, exclude=left_out),
        }


def write_manifest(sweep: Sweep, corpus: Corpus) -> None:
    """Write the sweep's manifest, or check that the stored one agrees.

    Raises:
        SettingsError: the directory contains another sweep or a run.
    """
    path, now = sweep.directory / MANIFEST, sweep.about(corpus)
    storage.fetch(sweep.directory, recursive=False)
    if path.exists():
        try:
            before = read_json(path)
        except ValueError as error:
            raise SettingsError(f"{error}; choose another --sweep, or remove the directory") from None
        if changed := sorted(differences(before, now, FREE)):
            raise SettingsError(
                f"{sweep.directory}: this sweep was begun with other settings ({', '.join(changed)}); choose another "
                "--sweep, or remove the directory"
            )
    elif RunLayout(sweep.directory).settings.exists():
        raise SettingsError(f"{sweep.directory}: holds a run, not a sweep; choose another --sweep")
    sweep.directory.mkdir(parents=True, exist_ok=True)
    write_json(path, now)
