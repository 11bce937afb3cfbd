"""A tree's trained levels, and documents sent down them by beam search (paper, prediction of AttentionXML)."""

import numpy as np
import torch

from axml_ray.corpus.store import Corpus
from axml_ray.network.level_network import Beam, Level, LevelNetwork
from axml_ray.network.networks import network_of
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, Precision, SettingsError
from axml_ray.training.level_files import finished, load_level
from axml_ray.training.scoring import expand_rows
from axml_ray.training.tree import TREE, level_directory, level_fingerprint, tree_directory
from axml_ray.tree.label_tree import LabelTree


class TreePredictor:
    """One trained tree.

    Args:
        tree: its shape.
        networks: of its levels, from the top.
        beam: C, nodes of a level whose children are scored.
        precision: of matrix products.
    """

    def __init__(self, tree: LabelTree, networks: list[LevelNetwork], beam: int, precision: Precision = "auto"):
        self.tree, self.networks, self.beam, self.precision = tree, networks, beam, precision

    @classmethod
    def open(cls, settings: Experiment, corpus: Corpus, number: int) -> "TreePredictor":
        """Tree `number` of a finished run.

        Raises:
            SettingsError: the tree or a level is missing, cut short, or was trained with other settings.
        """
        directory = tree_directory(settings.run_directory, number)
        try:
            tree = LabelTree.load(directory / TREE)
        except (FileNotFoundError, ValueError) as error:
            raise SettingsError(f"{directory / TREE}: no label tree ({error}); run jobs/train_ensemble.py") from None
        width = corpus.manifest["word_vector_dimension"]
        networks = []
        for level in range(1, len(tree.level_sizes) + 1):
            saved = level_directory(directory, level)
            if not finished(saved, level_fingerprint(settings, corpus, number, level)):
                raise SettingsError(f"{saved}: no finished level of these settings; run jobs/train_ensemble.py")
            empty = torch.zeros(corpus.manifest["counts"]["words"], width)
            network = network_of(Level.of(tree, level), empty, settings.network)
            load_level(network, saved)
            networks.append(network.eval())
        return cls(tree, networks, settings.tree.beam, settings.training.precision)

    def predict(self, tokens: Ragged, top: int) -> tuple[np.ndarray, np.ndarray]:
        """The best labels of each document.

        Args:
            tokens: word ids.
            top: labels wanted.

        Returns:
            Label ids, int32 [documents, top], best first, -1 where the beam held fewer; and their probabilities
            along the path from the root, float32 [documents, top].
        """
        beam: Beam | None = None
        for network in self.networks:
            last = network is self.networks[-1]
            beam = expand_rows(network, tokens, beam, top if last else self.beam, precision=self.precision)
        assert beam is not None
        scores = beam.scores.exp().numpy()
        labels = np.where(np.isfinite(beam.scores.numpy()), self.tree.label_order[beam.nodes.numpy()], -1).astype(
            np.int32
        )
        missing = top - labels.shape[1]
        if missing > 0:
            labels = np.pad(labels, ((0, 0), (0, missing)), constant_values=-1)
            scores = np.pad(scores, ((0, 0), (0, missing)))
        return labels, scores.astype(np.float32)
