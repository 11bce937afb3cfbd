"""All settings of a run, and the registration of ensemble members that are not part of this package."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr

from axml_ray.core.errors import SettingsError
from axml_ray.settings.base import AbsolutePath, Name, Seed, Settings
from axml_ray.settings.corpus import CorpusSettings
from axml_ray.settings.ensemble import EnsembleSettings
from axml_ray.settings.evaluation import EvaluationSettings
from axml_ray.settings.members import KINDS, FeatureSettings, Kind, MemberSettings, members_model
from axml_ray.settings.network import NetworkSettings
from axml_ray.settings.presets import Choice, CorpusSize, Preset, choose, is_given, knn_refusal, tree_share
from axml_ray.settings.resources import ResourceSettings
from axml_ray.settings.tracking import TrackingSettings
from axml_ray.settings.training import TrainingSettings
from axml_ray.settings.tree import TreeSettings


class Experiment(Settings):
    """All settings of a run: corpus, tree, network, training, members, ensemble, resources, evaluation, tracking."""

    preset: Preset = "paper"
    """Values to start from: exactly the paper's (`paper`), the best on validation documents (`recommended`), or these
    adapted to the prepared corpus (`auto`). A config contains only what differs from its preset."""
    name: Name = "experiment"
    """Directory of the run below `runs`."""
    seed: Seed = 0
    """Seed of the run, from which each label tree and its networks get a seed of their own."""
    runs: AbsolutePath = Field(default=Path("runs"), validate_default=True)
    """Directory of all runs, a path or a URL such as `s3://bucket/runs`."""
    continue_from: AbsolutePath | None = Field(default=None, exclude_if=lambda value: value is None)
    """Directory of a finished run whose label trees grow and whose networks go on training; use
    `axml-ray train --continue`, which sets it and what belongs to it."""
    corpora: AbsolutePath = Field(default=Path("corpora"), validate_default=True)
    """Directory of all prepared corpora, a path or a URL."""
    # Validated although it is a default, so that one without files is an error.
    corpus: CorpusSettings = Field(default_factory=dict, validate_default=True)
    tree: TreeSettings = TreeSettings()
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    features: FeatureSettings = FeatureSettings()
    members: Any = None  # set by `_rebuild`
    ensemble: EnsembleSettings = EnsembleSettings()
    resources: ResourceSettings = ResourceSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()

    _given: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def given(self) -> frozenset[str]:
        """Keys of settings that the user gave, in a file or on the command line."""
        return self._given

    def with_given(self, keys: Iterable[str]) -> Self:
        """Return the settings with the keys of those that the user gave."""
        self._given = frozenset(keys)
        return self

    @property
    def corpus_directory(self) -> Path:
        """Directory of the prepared corpus."""
        return self.corpora / self.corpus.name

    @property
    def run_directory(self) -> Path:
        """Directory of the run."""
        return self.runs / self.name


def changed(settings: Experiment, key: str, value: Any) -> Experiment:
    """Return the settings with the value of one path, such as `tree.height`, replaced by another valid one."""

    def within(group: Any, names: list[str]) -> Any:
        name, *rest = names
        return group.model_copy(update={name: within(getattr(group, name), rest) if rest else value})

    copy: Experiment = within(settings, key.split("."))
    return copy


def with_choices(settings: Experiment, choices: Iterable[Choice]) -> Experiment:
    """Return the settings with the values that `auto` chose."""
    for choice in choices:
        settings = changed(settings, choice.key, choice.value)
    return settings


def adapt(
    settings: Experiment, documents: int, labels: int, words: float, cpus: int | None = None
) -> tuple[Experiment, list[Choice]]:
    """Return the settings that the preset `auto` chooses for a corpus, and why; other presets are left as they are.

    Values that the user gave stay.

    Args:
        settings: the settings.
        documents: number of training documents, of which `training.documents` may be fewer.
        labels: number of labels with training documents.
        words: mean number of words of a training document.
        cpus: CPUs of the machine that trains, which the trees divide; None for a cluster.

    Raises:
        SettingsError: `auto` leaves out kNN, and no other kind of member has a weight.
    """
    if settings.preset != "auto":
        return settings, []
    has_names = settings.corpus.label_names is not None
    documents = min(documents, settings.training.documents or documents)
    choices = choose(CorpusSize(documents, labels, words, has_names, settings.tree.cluster_size), settings.given)
    adapted = with_choices(settings, choices)
    if not adapted.members.chosen:
        raise SettingsError(
            f"members: knn alone has a weight, but {knn_refusal(documents, words)}; give another kind a weight"
        )
    if cpus is not None and not settings.resources.gpus_per_worker:
        trees, workers = adapted.ensemble.trees, settings.resources.max_workers
        share, key = tree_share(cpus, trees * workers), "resources.cpus_per_worker"
        if share != settings.resources.cpus_per_worker and not is_given(key, settings.given):
            choices.append(Choice(key, share, f"{cpus} CPUs for {trees} trees side by side"))
            adapted = with_choices(adapted, choices[-1:])
    return adapted, choices


def register_member(name: str, settings: type[MemberSettings], implementation: str) -> None:
    """Add a kind of ensemble member.

    Name the modules that call this in the environment variable `AXML_RAY_PLUGINS`, separated by commas, in every
    process of a job. A single-process program may instead call it before it loads settings.

    Args:
        name: name of the kind, as under `members` in a config.
        settings: model of the kind's settings.
        implementation: `module:Class`, a subclass of `axml_ray.members.member.Member`.
    """
    KINDS[name] = Kind(settings, implementation)
    _rebuild()


def _rebuild() -> None:
    """Give `Experiment.members` a group of settings for every registered kind."""
    model = members_model()
    field = Experiment.model_fields["members"]
    field.annotation, field.default = model, model()
    Experiment.model_rebuild(force=True)


_rebuild()
