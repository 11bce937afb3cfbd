"""A run: its settings, its corpus, and everything that is derived from them.

This module computes all cache keys and member specifications; others receive paths, keys and their own settings.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import torch

from axml_ray.core.array_file import key_of
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import content_digest, read_json, write_json, write_json_once
from axml_ray.core.run_layout import RunLayout
from axml_ray.core.run_manifest import read_run_manifest
from axml_ray.core.seeds import derived_seed
from axml_ray.corpus.continued import previous_words
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.combiner import Combiner, MemberWeights, combiner_class
from axml_ray.ensemble.ensemble import Combination, Ensemble
from axml_ray.members.featurizer import ABOUT, Featurizer
from axml_ray.members.member import FitInputs, LoadInputs, Member, MemberInfo, MemberSpec
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import chosen_format
from axml_ray.settings import Experiment, Precision, fingerprint
from axml_ray.settings.configuration import read_settings
from axml_ray.settings.members import MemberSettings, kinds
from axml_ray.training.continuation import PreviousNetworks
from axml_ray.training.distributed import DistributedContext
from axml_ray.tree.label_tree import LabelTree

RETRAIN = "run axml-ray train"
COMBINER_MANIFEST = "combiner.json"


@dataclass(frozen=True)
class Run:
    """A run of the main job.

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

    @cached_property
    def previous(self) -> "Run | None":
        """Return the run that this one continues, None for a run from scratch.

        Raises:
            SettingsError: the run, or its corpus, is no longer there.
        """
        return previous_run(self.settings)

    def tree_seed(self, number: int) -> int:
        """Return the seed of label tree `number` (from 0) and of its members."""
        return derived_seed(self.settings.seed, number)

    # Cache keys

    def tree_key(self, number: int) -> str:
        """Return the cache key of label tree `number` (from 0), on which those of its members depend."""
        parts = [self.corpus.fingerprint, self.settings.tree.model_dump(mode="json"), self.tree_seed(number)]
        if self.settings.continue_from is not None:
            parts.append({"continues": self._continued_trees[number]})
        return fingerprint(*parts)

    @cached_property
    def _continued_trees(self) -> list[str]:
        """Return the contents of the trees that this run continues; that run may be gone when this one is trained."""
        try:
            return list(read_run_manifest(self.layout.directory)["continues"])
        except (SettingsError, KeyError, TypeError):
            assert self.previous is not None
            return self.previous.tree_contents(self.settings.ensemble.trees)

    def tree_contents(self, trees: int) -> list[str]:
        """Return a digest of each of the first trees of this run, together with the networks that others can continue.

        Raises:
            SettingsError: a tree, or a member of it, is missing.
        """
        contents = []
        for number in range(trees):
            members = [spec for spec in self.members if spec.tree == number and kinds()[spec.kind].load().continues]
            self.open_tree(number)
            tree = content_digest(self.layout.tree(number), [self.layout.tree_file(number)])
            contents.append(fingerprint(tree, [[spec.kind, spec.content] for spec in members]))
        return contents

    @property
    def features_key(self) -> str:
        """Return the cache key of the featurizer."""
        return fingerprint(self.corpus.fingerprint, self.settings.features, self.settings.training.documents)

    @property
    def members_key(self) -> str:
        """Return the cache key of the members' rankings and of their weighted mean."""
        members = [[each.name, each.key, each.weight, each.config.model_dump(mode="json")] for each in self.members]
        return fingerprint(members, self.settings.ensemble.top_labels)

    @property
    def predictions_key(self) -> str:
        """Return the cache key of the ensemble's predictions."""
        return fingerprint(self.members_key, self.settings.ensemble.combiner)

    def _member_key(self, kind: str, implementation: type[Member], config: Any, tree: int | None) -> str:
        fitted = config.model_dump(mode="json", exclude=set(implementation.not_fitted))
        parts = [kind, self.corpus.fingerprint, fitted, self.settings.training.documents]
        parts.append(self.settings.seed if tree is None else self.tree_key(tree))
        if implementation.uses_features:
            parts.append(self.features_key)
        return fingerprint(*parts)

    def decided_precision(self, context: DistributedContext) -> Precision:
        """Return the number format of all networks of the run; all workers of a member call this together.

        What "auto" is depends on the machine, so the first worker of the run that asks decides it for the others, and
        for a later start elsewhere. GPUs have a decision of their own.
        """
        precision = self.settings.training.precision
        if precision != "auto":
            return precision
        precision = chosen_format(context.device, context.agree_on_precision(precision))
        if context.is_first:
            precision = write_json_once(self.layout.number_format(backend_for(context.device).device_type), precision)
        names: tuple[Precision, ...] = get_args(Precision)
        return names[int(context.from_first(torch.tensor([names.index(precision)])))]

    # Label trees

    def has_tree(self, number: int) -> bool:
        """Return whether the run's directory has label tree `number`, built with these settings."""
        try:
            if read_json(self.layout.tree_manifest(number))["fingerprint"] == self.tree_key(number):
                LabelTree.load(self.layout.tree_file(number))
                return True
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return False

    def keep_tree(self, number: int, tree: LabelTree) -> None:
        """Save label tree `number`."""
        self.layout.tree(number).mkdir(parents=True, exist_ok=True)
        tree.save(self.layout.tree_file(number))
        manifest = {"fingerprint": self.tree_key(number), "level_sizes": tree.level_sizes}
        write_json(self.layout.tree_manifest(number), manifest)

    def open_tree(self, number: int) -> LabelTree:
        """Load label tree `number`.

        Raises:
            SettingsError: the tree is missing or broken, or was built for another corpus.
        """
        path = self.layout.tree_file(number)
        try:
            tree = LabelTree.load(path)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path}: no label tree ({error}); {RETRAIN}") from None
        if len(tree.label_order) != self.corpus.trained:
            raise SettingsError(f"{path}: a label tree of another corpus; {RETRAIN} under another --name")
        return tree

    # Members

    @cached_property
    def members(self) -> tuple[MemberSpec, ...]:
        """Return the members by the settings, in the order of the kinds' registry and of the trees."""
        specs = []
        for info, own in self._members():
            implementation = kinds()[info.kind].load()
            config = implementation.configure(self.settings, own)
            specs.append(
                MemberSpec(
                    **vars(info),
                    config=config,
                    directory=self.layout.member(info.kind, info.tree),
                    key=self._member_key(info.kind, implementation, config, info.tree),
                )
            )
        return tuple(specs)

    @property
    def member_infos(self) -> tuple[MemberInfo, ...]:
        """Return the members, in order, without what they are fitted from; this computes no cache keys."""
        return tuple(info for info, _ in self._members())

    @property
    def member_names(self) -> list[str]:
        """Return the names of the members, in order; this computes no cache keys."""
        return [info.name for info in self.member_infos]

    @property
    def members_without_networks(self) -> tuple[MemberInfo, ...]:
        """Return the members that are fitted in one process, before the networks are trained."""
        return tuple(info for info in self.member_infos if not kinds()[info.kind].load().trained_by_workers)

    def _members(self) -> Iterator[tuple[MemberInfo, MemberSettings]]:
        """Yield each member and the settings of its kind."""
        total = sum(own.weight for own in self.settings.members.chosen.values())
        for kind, own in self.settings.members.chosen.items():
            implementation = kinds()[kind].load()
            is_one = implementation.one_if_flat and not self.settings.tree.height
            trees = 1 if is_one else self.settings.ensemble.trees
            numbers: list[int | None] = [*range(trees)] if implementation.scope == "tree" else [None]
            for number in numbers:
                yield MemberInfo(_member_name(kind, number), kind, number, own.weight / total / len(numbers)), own

    def spec(self, name: str) -> MemberSpec:
        """Return the member of this name."""
        return next(spec for spec in self.members if spec.name == name)

    @property
    def member_weights(self) -> MemberWeights:
        """Return the kinds and weights of the members, as combiners take them."""
        return MemberWeights([each.kind for each in self.members], [each.weight for each in self.members])

    @property
    def needs_features(self) -> bool:
        """Return whether any member reads TF-IDF features."""
        return any(kinds()[each.kind].load().uses_features for each in self.members)

    def has_features(self) -> bool:
        """Return whether the featurizer is fitted with these settings."""
        return key_of(self.layout.features, ABOUT) == self.features_key

    def open_features(self) -> Featurizer:
        """Load the fitted featurizer.

        Raises:
            SettingsError: the featurizer is missing or broken, or was fitted with other settings.
        """
        path = self.layout.features
        if not self.has_features():
            raise SettingsError(f"{path}: no features of these settings; {RETRAIN}")
        try:
            return Featurizer.load(path, len(self.corpus.tokenizer))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{error}; remove the file, and {RETRAIN}") from None

    def fit_inputs(self, spec: MemberSpec, **more: Any) -> FitInputs:
        """Return the inputs of a member's fit; `more` are further fields of `FitInputs`."""
        uses_features = kinds()[spec.kind].load().uses_features
        return FitInputs(
            corpus=self.corpus,
            documents=self.settings.training.documents,
            max_tokens=self.settings.corpus.max_tokens,
            seed=self.settings.seed if spec.tree is None else self.tree_seed(spec.tree),
            tree=None if spec.tree is None else self.open_tree(spec.tree),
            featurizer=self.open_features() if uses_features else None,
            previous=self._previous_networks(spec) if kinds()[spec.kind].load().continues else None,
            **more,
        )

    def _previous_networks(self, spec: MemberSpec) -> PreviousNetworks | None:
        """Return the networks that a member's training continues from, if the run continues another one."""
        if self.previous is None or spec.tree is None:
            return None
        old, words = self.previous.spec(spec.name), self.previous.corpus.tokenizer.words
        words_before = previous_words(words, self.corpus.tokenizer.words)
        return PreviousNetworks(old.directory, self.previous.open_tree(spec.tree), words_before)

    def open_member(
        self, spec: MemberSpec, featurizer: Featurizer | None, device: torch.device | None = None
    ) -> Member:
        """Load a fitted member.

        Args:
            spec: the member.
            featurizer: featurizer of the run, if the kind uses it.
            device: device of networks; by default the CPU.

        Raises:
            SettingsError: the member is missing or broken, or was fitted with other settings.
        """
        if not spec.is_fitted:
            raise SettingsError(f"{spec.directory}: no {spec.title} of these settings; {RETRAIN}")
        inputs = LoadInputs(
            labels=self.corpus.trained,
            words=len(self.corpus.tokenizer),
            tree=None if spec.tree is None else self.open_tree(spec.tree),
            featurizer=featurizer,
            precision=self.settings.training.precision,
            device=device or torch.device("cpu"),
        )
        try:
            member: Member = kinds()[spec.kind].load().load(spec.directory, spec.config, inputs)
            return member
        except (OSError, ValueError) as error:
            raise SettingsError(f"{error}; remove {spec.directory}, and {RETRAIN}") from None

    # Combiner and ensemble

    def has_combiner(self) -> bool:
        """Return whether the combiner needs no fit, or is fitted for these members."""
        if not combiner_class(self.settings.ensemble.combiner).is_fitted:
            return True
        try:
            manifest = read_json(self.layout.combiner / COMBINER_MANIFEST)
            return bool(manifest["key"] == self.predictions_key)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def keep_combiner(self, combiner: Combiner) -> None:
        """Save a fitted combiner, its manifest last."""
        self.layout.combiner.mkdir(parents=True, exist_ok=True)
        (self.layout.combiner / COMBINER_MANIFEST).unlink(missing_ok=True)
        combiner.save(self.layout.combiner)
        manifest = {"kind": self.settings.ensemble.combiner, "key": self.predictions_key}
        write_json(self.layout.combiner / COMBINER_MANIFEST, manifest)

    def open_combiner(self) -> Combiner:
        """Load the combiner.

        Raises:
            SettingsError: the combiner is not fitted for these members, or broken.
        """
        if not self.has_combiner():
            raise SettingsError(f"{self.layout.combiner}: the combiner is not fitted for these members; {RETRAIN}")
        try:
            implementation = combiner_class(self.settings.ensemble.combiner)
            return implementation.load(self.layout.combiner, self.corpus.labels.counts)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{error}; remove {self.layout.combiner}, and {RETRAIN}") from None

    def combination(self, combiner: Combiner) -> Combination:
        """Return the combination of the members by a combiner."""
        return Combination(self.members, combiner, self.settings.ensemble.top_labels)

    def open_ensemble(
        self, combiner: Callable[[], Combiner] | None = None, device: torch.device | None = None
    ) -> Ensemble:
        """Load all members of a finished run.

        Args:
            combiner: returns the combiner; by default, that of the run is loaded.
            device: device of the networks; by default the CPU.

        Raises:
            SettingsError: a member or the combiner is missing, broken, or was fitted with other settings.
        """
        featurizer = self.open_features() if self.needs_features else None
        members = {spec.name: self.open_member(spec, featurizer, device) for spec in self.members}
        combination = self.combination((combiner or self.open_combiner)())
        return Ensemble(combination, members)


def _member_name(kind: str, tree: int | None) -> str:
    return kind if tree is None else f"{kind}-{tree}"


def previous_run(settings: Experiment) -> Run | None:
    """Return the run that the settings continue, None for settings of a run from scratch.

    Raises:
        SettingsError: the run, or its corpus, is not there.
    """
    if settings.continue_from is None:
        return None
    old = read_settings(settings.continue_from)
    return Run(old, Corpus.open(old.corpus_directory))
