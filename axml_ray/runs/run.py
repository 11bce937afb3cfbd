"""A run: opening it, and saving and opening its parts. Its members and cache keys are in `keys.py`.

A part is current if it was saved with the cache key that follows from settings and corpus now; `has_…` tells, `keep_…`
saves, and `open_…` opens it or says what to do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch

from axml_ray.core import storage
from axml_ray.core.array_file import key_of
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import check_fences, content_digest, read_json, write_json, write_json_once
from axml_ray.core.lease import Lease, lease_of
from axml_ray.core.run_manifest import read_run_manifest
from axml_ray.corpus.continued import previous_words
from axml_ray.corpus.counts import Counts, counts_of
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.calibration import Calibration
from axml_ray.ensemble.combiner import Combiner, combiner_class
from axml_ray.ensemble.ensemble import Combination, Ensemble
from axml_ray.members.featurizer import ABOUT, Featurizer
from axml_ray.members.member import MANIFEST, FitInputs, LoadInputs, Member, MemberSpec
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import chosen_format
from axml_ray.runs.keys import RunKeys
from axml_ray.settings import Experiment, Precision, fingerprint
from axml_ray.settings.configuration import read_settings
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.previous_networks import PreviousNetworks
from axml_ray.training.progress import Journal
from axml_ray.tree.label_tree import LabelTree

RETRAIN = "run axml-ray train"
COMBINER_MANIFEST = "combiner.json"


@dataclass(frozen=True)
class Run(RunKeys):
    """A run of the main job, with the parts in its directory."""

    @classmethod
    def open(cls, source: Experiment | Path, lease: Lease | None = None) -> "Run":
        """Open a run with the corpus that it was trained on, given its directory or its settings.

        A worker gives the lease of the job that it works for, so that it writes nothing after the job lost the run.

        Raises:
            SettingsError: the directory is not a run, or its corpus is missing.
        """
        if lease is not None:
            lease.enforce()
        settings = read_settings(source) if isinstance(source, Path) else source
        storage.fetch(settings.run_directory, recursive=False)
        return cls(settings, Corpus.open(settings.corpus_directory))

    @property
    def lease(self) -> Lease | None:
        """Return this process's lease of the run, for workers; None if the run was opened without one."""
        return lease_of(self.layout.directory)

    @cached_property
    def counts(self) -> Counts:
        """Return the sizes of the corpus, from which the memory of tasks is estimated."""
        return counts_of(self.corpus, self.settings)

    # The run that this one continues

    @cached_property
    def previous(self) -> "Run | None":
        """Return the run that this one continues, None for a run from scratch.

        Raises:
            SettingsError: the run, or its corpus, is no longer there.
        """
        return None if self.settings.continue_from is None else Run.open(self.settings.continue_from)

    @cached_property
    def continued_trees(self) -> list[str]:
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
            members = [spec for spec in self.members if spec.tree == number and spec.implementation.continues]
            self.open_tree(number)
            tree = content_digest(self.layout.tree(number), [self.layout.tree_file(number)])
            contents.append(fingerprint(tree, [[spec.kind, spec.content] for spec in members]))
        return contents

    # Label trees

    def has_tree(self, number: int) -> bool:
        """Return whether the run's directory has label tree `number`, built with these settings."""
        for path in (self.layout.tree_file(number), self.layout.tree_manifest(number)):
            storage.fetch(path)
        try:
            LabelTree.load(self.layout.tree_file(number))
            return bool(read_json(self.layout.tree_manifest(number))["fingerprint"] == self.tree_key(number))
        except (OSError, ValueError, KeyError, TypeError):
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
        storage.fetch(path)
        try:
            tree = LabelTree.load(path)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path}: no label tree ({error}); {RETRAIN}") from None
        if len(tree.label_order) != self.corpus.trained:
            raise SettingsError(f"{path}: a label tree of another corpus; {RETRAIN} under another --name")
        return tree

    # Featurizer

    def has_features(self) -> bool:
        """Return whether the featurizer is fitted with these settings."""
        storage.fetch(self.layout.features)
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

    # Members

    def prepare_fit(
        self,
        spec: MemberSpec,
        context: DistributedContext | None = None,
        report: Callable[[dict[str, Any]], None] | None = None,
    ) -> FitInputs:
        """Create a member's directory, and return the inputs of its fit. Label trees and featurizer must be there.

        The caller marks the member as fitted when all of its workers are done.

        Args:
            spec: the member.
            context: distributed context; by default this process alone.
            report: called with records of progress; by default they are written to the journal of the label tree.
        """
        kind, context = spec.implementation, context or DistributedContext()
        if context.is_first:  # of another fit, whose manifest might fit some of the new files, too
            check_fences(spec.directory)
            storage.remove(spec.directory / MANIFEST)
        spec.directory.mkdir(parents=True, exist_ok=True)
        if report is None and spec.tree is not None:
            report = Journal(self.layout.tree(spec.tree), tree=spec.tree).write
        return FitInputs(
            corpus=self.corpus,
            documents=self.settings.training.documents,
            max_tokens=self.settings.corpus.max_tokens,
            seed=self.settings.seed if spec.tree is None else self.tree_seed(spec.tree),
            tree=None if spec.tree is None else self.open_tree(spec.tree),
            context=context,
            report=report or (lambda record: None),
            previous=self._previous_networks(spec) if kind.continues else None,
            precision=self.decide_precision(context) if kind.trained_by_workers else "auto",
            featurizer=self.open_features() if kind.uses_features else None,
        )

    def _previous_networks(self, spec: MemberSpec) -> PreviousNetworks | None:
        """Return the networks that a member's training continues from, if the run continues another one."""
        if self.previous is None or spec.tree is None:
            return None
        old, vocabulary = self.previous.spec(spec.name), self.previous.corpus.tokenizer.words
        words_before = previous_words(vocabulary, self.corpus.tokenizer.words)
        return PreviousNetworks(old.directory, self.previous.open_tree(spec.tree), words_before)

    def decide_precision(self, context: DistributedContext) -> Precision:
        """Return the number format of all networks of the run; all workers of a member call this together.

        What "auto" is depends on the machine, so the first process of the run that asks decides it for the others, for
        a later start elsewhere, and for predictions. GPUs have a decision of their own.
        """
        precision = self.settings.training.precision
        if precision != "auto":
            return precision
        precision = chosen_format(context.device, context.agree_on_precision(precision))
        if context.is_first:
            precision = write_json_once(self.layout.number_format(backend_for(context.device).device_type), precision)
        names: tuple[Precision, ...] = get_args(Precision)
        return names[int(context.from_first(torch.tensor([names.index(precision)])))]

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
        device, precision = device or torch.device("cpu"), self.settings.training.precision
        decided = self.layout.number_format(backend_for(device).device_type)
        for path in (decided, spec.directory):
            storage.fetch(path)
        if precision == "auto" and decided.is_file():
            precision = read_json(decided)
        inputs = LoadInputs(
            labels=self.corpus.trained,
            words=len(self.corpus.tokenizer),
            tree=None if spec.tree is None else self.open_tree(spec.tree),
            featurizer=featurizer,
            precision=precision,
            device=device,
        )
        try:
            return spec.implementation.load(spec.directory, spec.config, inputs)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{error}; remove {spec.directory}, and {RETRAIN}") from None

    def check_fitted(self) -> None:
        """Raise unless the featurizer and all members are fitted; this reads none of their weights.

        Raises:
            SettingsError: a part is missing, or was fitted with other settings.
        """
        if self.needs_features and not self.has_features():
            raise SettingsError(f"{self.layout.features}: no features of these settings; {RETRAIN}")
        for spec in self.members:
            if not spec.is_fitted:
                raise SettingsError(f"{spec.directory}: no {spec.title} of these settings; {RETRAIN}")

    # Combiner and ensemble

    def has_combiner(self) -> bool:
        """Return whether the combiner needs no fit, or is fitted for these members."""
        if not combiner_class(self.settings.ensemble.combiner).is_fitted:
            return True
        storage.fetch(self.layout.combiner)
        try:
            manifest = read_json(self.layout.combiner / COMBINER_MANIFEST)
            return bool(manifest["key"] == self.predictions_key)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def keep_combiner(self, combiner: Combiner) -> None:
        """Save a fitted combiner, its manifest last."""
        check_fences(self.layout.combiner)
        self.layout.combiner.mkdir(parents=True, exist_ok=True)
        storage.remove(self.layout.combiner / COMBINER_MANIFEST)
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

    def keep_calibration(self, calibration: Calibration) -> None:
        """Save the calibration of the combined scores, for the evaluation."""
        write_json(self.layout.calibration, {"key": self.predictions_key, "calibration": calibration.as_json()})

    def open_calibration(self) -> Calibration | None:
        """Load the calibration of the combined scores; None if the run has none for its members."""
        try:
            stored = read_json(self.layout.calibration)
            return Calibration.from_json(stored["calibration"]) if stored["key"] == self.predictions_key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

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
