"""The members of a run, and the cache key of each of its parts.

All of it follows from the settings and the corpus; no part of the run is opened here. Only `tree_key` of a run that
continues another one reads what that one's trees are.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from axml_ray.core.run_layout import RunLayout
from axml_ray.core.seeds import derived_seed
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.combiner import MemberWeights
from axml_ray.members.member import MemberInfo, MemberSpec
from axml_ray.settings import Experiment, fingerprint
from axml_ray.settings.members import MemberSettings, kinds


@dataclass(frozen=True)
class RunKeys(ABC):
    """The members of a run, and the cache keys of its parts.

    Attributes:
        settings: settings of the experiment.
        corpus: a prepared corpus.
    """

    settings: Experiment
    corpus: Corpus

    @property
    def layout(self) -> RunLayout:
        """Return the paths of the run."""
        return RunLayout(self.settings.run_directory)

    @property
    @abstractmethod
    def continued_trees(self) -> list[str]:
        """Return the contents of the trees that this run continues; `Run` reads them."""

    def tree_seed(self, number: int) -> int:
        """Return the seed of label tree `number` (from 0) and of its members."""
        return derived_seed(self.settings.seed, number)

    def tree_key(self, number: int) -> str:
        """Return the cache key of label tree `number` (from 0), on which those of its members depend."""
        key_parts = [self.corpus.fingerprint, self.settings.tree.model_dump(mode="json"), self.tree_seed(number)]
        if self.settings.continue_from is not None:
            key_parts.append({"continues": self.continued_trees[number]})
        return fingerprint(*key_parts)

    @property
    def features_key(self) -> str:
        """Return the cache key of the featurizer."""
        return fingerprint(self.corpus.fingerprint, self.settings.features, self.settings.training.documents)

    @property
    def members_key(self) -> str:
        """Return the cache key of the members' rankings and of their weighted mean."""
        members = [
            [spec.name, spec.key, spec.digest, spec.weight, spec.config.model_dump(mode="json")]
            for spec in self.members
        ]
        return fingerprint(members, self.settings.ensemble.top_labels)

    @property
    def predictions_key(self) -> str:
        """Return the cache key of the ensemble's predictions."""
        return fingerprint(self.members_key, self.settings.ensemble.combiner)

    @cached_property
    def members(self) -> tuple[MemberSpec, ...]:
        """Return the members by the settings, in the order of the kinds' registry and of the trees."""
        specs = []
        for info, settings in self._members():
            config = info.implementation.configure(self.settings, settings)
            fitted = config.model_dump(mode="json", exclude=set(info.implementation.not_fitted))
            key_parts = [info.kind, self.corpus.fingerprint, fitted, self.settings.training.documents]
            key_parts.append(self.settings.seed if info.tree is None else self.tree_key(info.tree))
            if info.implementation.uses_features:
                key_parts.append(self.features_key)
            directory = self.layout.member(info.kind, info.tree)
            specs.append(MemberSpec(**vars(info), config=config, directory=directory, key=fingerprint(*key_parts)))
        return tuple(specs)

    @property
    def member_infos(self) -> tuple[MemberInfo, ...]:
        """Return the members, in order, without what they are fitted from; this computes no cache keys."""
        return tuple(info for info, _ in self._members())

    @property
    def member_names(self) -> list[str]:
        """Return the names of the members, in order; this computes no cache keys."""
        return [info.name for info in self.member_infos]

    def _members(self) -> Iterator[tuple[MemberInfo, MemberSettings]]:
        """Yield each member and the settings of its kind."""
        total = sum(settings.weight for settings in self.settings.members.chosen.values())
        for kind, settings in self.settings.members.chosen.items():
            implementation = kinds()[kind].load()
            count = implementation.number_in_run(self.settings, settings, self.corpus.trained)
            numbers: list[int | None] = [*range(count)] if implementation.scope == "tree" else [None]
            for number in numbers:
                name = kind if number is None else f"{kind}-{number}"
                yield MemberInfo(name, kind, number, settings.weight / total / len(numbers)), settings

    def spec(self, name: str) -> MemberSpec:
        """Return the member of this name."""
        return next(spec for spec in self.members if spec.name == name)

    @property
    def member_weights(self) -> MemberWeights:
        """Return the kinds and weights of the members, as combiners take them."""
        return MemberWeights([spec.kind for spec in self.members], [spec.weight for spec in self.members])

    @property
    def needs_features(self) -> bool:
        """Return whether any member reads TF-IDF features."""
        return any(info.implementation.uses_features for info in self.member_infos)
