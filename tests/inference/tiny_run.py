"""A finished run over the tiny corpus, trained in seconds, without Ray."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tiny_corpus import experiment, write_corpus

from axml_ray.corpus.store import Corpus
from axml_ray.inference.beam import join_fingerprint
from axml_ray.inference.ensemble import FREQUENCY, LEARNED_JOIN, Ensemble, learned_join_fingerprint
from axml_ray.inference.frequency import Coefficients, FrequencyCorrection
from axml_ray.inference.learned_join import NODES, LearnedJoin
from axml_ray.linear.fitting import fit_linear
from axml_ray.linear.name_matches import NameMatches, trie_of
from axml_ray.linear.neighbours import Neighbours
from axml_ray.settings import Experiment, LinearSettings
from axml_ray.training.tree import (
    LINEAR,
    NAME_MATCHES,
    NEIGHBOURS,
    TREE,
    TreeTraining,
    linear_fingerprint,
    name_matches_fingerprint,
    neighbours_fingerprint,
    tree_directory,
)
from axml_ray.training.workers import Workers
from axml_ray.tree.label_tree import LabelTree


@dataclass(frozen=True)
class Run:
    settings: Experiment
    corpus: Corpus

    def ensemble(self) -> Ensemble:
        return Ensemble.open(self.settings, self.corpus)

    def texts(self, split: str) -> list[str]:
        return self.corpus.table(split, ["text"])["text"].to_pylist()


def train_run(
    home: Path,
    *,
    trees: int = 2,
    height: int = 1,
    epochs: int = 4,
    linear: float = 0.0,
    neighbours: int = 0,
    name_matches_weight: float = 0.0,
    correction: Coefficients | None = None,
    learned_join: bool = False,
    **network: Any,
) -> Run:
    """Train a run whose beam of three of four clusters leaves some labels out.

    A correction of its scores isn't fitted, since next to all are right, but given; nor is a learned join, which adds 1
    to the log-odds of labels that the networks score above 0.3 and takes 2 from others that are frequent.
    """
    corpus = write_corpus(home / "corpora" / "tiny")
    settings = experiment(home, tree={"height": height, "cluster_size": 4, "beam": 3}, epochs=(epochs,))
    shape = settings.network.model_copy(update={"evidence": network.get("kind", "attention") == "attention", **network})
    ensemble = settings.ensemble.model_copy(update={"trees": trees, "top_labels": 20})
    how = LinearSettings(weight=linear, neighbours=neighbours, name_matches_weight=name_matches_weight)
    settings = settings.model_copy(update={"network": shape, "ensemble": ensemble, "linear": how})
    for number in range(trees):
        directory = tree_directory(settings.run_directory, number)
        directory.mkdir(parents=True)
        tree = LabelTree.build(corpus.label_features(), height=height, cluster_size=4, seed=settings.seed + number)
        tree.save(directory / TREE)
        TreeTraining(settings, corpus, tree, number, directory, Workers(), lambda record: None).run()
        if linear:
            train = corpus.split("train")
            words, translation = corpus.tokenizer.words, corpus.translation
            fitted = fit_linear(tree, train.tokens, train.labels, words, settings.linear, translation=translation)
            fitted.save(directory / LINEAR, linear_fingerprint(settings, corpus, number))
            if neighbours and not number:
                known = Neighbours.fit(
                    fitted.features.rows(train.tokens), train.labels, corpus.trained, neighbours, 0.2
                )
                known.save(settings.run_directory / NEIGHBOURS, neighbours_fingerprint(settings, corpus))
            if name_matches_weight and not number:
                names = trie_of(corpus.labels, corpus.tokenizer, settings.corpus.max_tokens, how.name_stemmer)
                tokens = train.translated(translation).tokens
                matches = NameMatches.fit(names, tokens, train.labels, corpus.trained, name_matches_weight)
                matches.save(settings.run_directory / NAME_MATCHES, name_matches_fingerprint(settings, corpus))
    if correction is not None:
        ensemble = ensemble.model_copy(update={"frequency_correction": True})
        settings = settings.model_copy(update={"ensemble": ensemble})
        path, mark = settings.run_directory / FREQUENCY, join_fingerprint(settings, corpus)
        FrequencyCorrection(correction, corpus.labels.counts).save(path, mark)
    if learned_join:
        settings = settings.model_copy(update={"linear": how.model_copy(update={"learned_join": True})})
        path, mark = settings.run_directory / LEARNED_JOIN, learned_join_fingerprint(settings, corpus)
        join_of(corpus).save(path, mark)
    content = yaml.safe_dump(settings.model_dump(mode="json"))
    (settings.run_directory / "settings.yaml").write_text(content, encoding="utf-8")
    return Run(settings, corpus)


def join_of(corpus: Corpus) -> LearnedJoin:
    """A join of one regression tree, see `train_run`."""
    asked, thresholds, values = (np.zeros((1, NODES), kind) for kind in (np.int64, np.float64, np.float64))
    children = np.arange(NODES)[:, None].repeat(2, axis=1)[None]
    asked[0, :2], thresholds[0, :2] = (1, 3), (0.3, np.log1p(np.median(corpus.labels.counts)))
    children[0, :2] = (1, 2), (3, 4)
    values[0, [2, 4]] = 1.0, -2.0
    return LearnedJoin(asked, thresholds, children, values, corpus.labels.counts)
