"""Attention vectors that begin where their label's words are, instead of at random. Not in the paper.

The encoder, as it stands before a level is trained, reads the training texts once; the mean hidden state of each word
is taken. A node's vector points from the mean of all words to the mean of its own: those of its TF-IDF centroid, from
which the tree was built, or those of its labels' names. So a level starts as a nearest-centroid classifier in the space
of its encoder, and labels of few documents start where their words are. With few documents this is worth many epochs
(benchmarks/results).

Shapes: V words, D hidden, L labels, n nodes, B documents, T tokens.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize
from torch import Tensor

from axml_ray.corpus.label_features import bag_of_words, weigh, word_weights
from axml_ray.corpus.store import Corpus
from axml_ray.linear.label_names import name_texts
from axml_ray.network.level_network import LevelNetwork
from axml_ray.network.precision import autocast
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision
from axml_ray.training.batches import by_length, padded_tokens
from axml_ray.training.scoring import SCORING_BATCH
from axml_ray.training.workers import Workers
from axml_ray.tree.label_tree import LabelTree

# Length of a vector at the start. Small, so that training can still turn it; of 0.5, 2 and 8, 2 learned fastest.
START_LENGTH = 2.0
# Words of a label's name that are read.
NAME_WORDS = 500
# Words of texts whose states are summed at a time: a float32 of 2^24 no longer grows by 1.
WORDS_AT_ONCE = 15 << 20
# Texts whose words are counted at a time.
TEXTS_AT_ONCE = 1 << 15
# Nodes whose vectors are made at a time.
NODES_AT_ONCE = 1 << 14


@torch.inference_mode()
def word_states(network: LevelNetwork, tokens: Ragged, words: int, precision: Precision, workers: Workers) -> Tensor:
    """The mean hidden state of each word less that of all words, float32 [V, D]; zero for words without a token."""
    network.eval()
    total = torch.zeros(words, network.attention.dimension + 1, device=workers.device)
    part, held = torch.zeros_like(total), 0
    for rows in by_length(tokens.lengths, SCORING_BATCH)[workers.rank :: workers.count]:
        lengths = torch.from_numpy(tokens.lengths[rows]).to(workers.device)
        padded = padded_tokens(tokens, rows, int(lengths.max())).to(workers.device)
        with autocast(workers.device, precision):
            states = network.encode(padded, lengths).float()
        real = torch.arange(padded.shape[1], device=workers.device) < lengths[:, None]
        counted = torch.nn.functional.pad(states, (0, 1), value=1.0)
        part.index_add_(0, padded[real], counted[real])
        held += int(tokens.lengths[rows].sum())
        if held >= WORDS_AT_ONCE:
            total += part
            part.zero_()
            held = 0
    total = workers.sum(total.add_(part))
    count = total[:, -1:]
    mean = total[:, :-1].sum(0) / count.sum()
    return (total[:, :-1] / count.clamp(min=1) - mean) * (count > 0)


def name_features(corpus: Corpus, tokens: Ragged) -> sparse.csr_matrix:
    """TF-IDF of the words of each trained label's name, float32 CSR [L, V], rows of length one.

    Args:
        corpus: whose labels have names, or are their own.
        tokens: word ids of the training documents, as they are read, which tell how common a word is.

    A label without a name, or whose name has none of these words, has its TF-IDF centroid.
    """
    centroids = normalize(corpus.label_features())
    frequency = np.zeros(centroids.shape[1], dtype=np.int64)
    for start in range(0, len(tokens), TEXTS_AT_ONCE):
        some = tokens.take(np.arange(start, min(start + TEXTS_AT_ONCE, len(tokens))))
        frequency += np.bincount(bag_of_words(some, len(frequency)).indices, minlength=len(frequency))
    names = name_texts(corpus.labels, corpus.tokenizer, NAME_WORDS).translated(corpus.translation)
    rows = bag_of_words(names.tokens, len(frequency))
    rows.data[frequency[rows.indices] == 0] = 0  # the encoder says nothing of them
    rows.eliminate_zeros()
    weigh(rows, word_weights(frequency, len(tokens)))
    told = np.flatnonzero(np.diff(rows.indptr))
    named = names.labels.values[told]
    others = np.setdiff1d(np.arange(corpus.trained), named)
    return sparse.vstack([rows[told], centroids[others]], format="csr")[np.argsort(np.concatenate([named, others]))]


def node_features(tree: LabelTree, level: int, label_features: sparse.csr_matrix) -> sparse.csr_matrix:
    """The sum of its labels' features for each node of a level, float32 CSR [n, V]."""
    leaves = label_features[tree.label_order]
    if level > tree.height:
        return leaves
    starts = np.arange(tree.level_sizes[level - 1] + 1, dtype=np.int64)
    for first_child in tree.first_child[level:]:
        starts = first_child[starts]
    ones = np.ones(leaves.shape[0], dtype=np.float32)
    return sparse.csr_matrix((ones, np.arange(leaves.shape[0]), starts)) @ leaves


@torch.no_grad()
def start_attention(
    network: LevelNetwork,
    tree: LabelTree,
    tokens: Ragged,
    label_features: sparse.csr_matrix,
    precision: Precision,
    workers: Workers,
) -> None:
    """Give each node of the network's level its start; nodes without features keep the random one."""
    states = word_states(network, tokens, label_features.shape[1], precision, workers).cpu().numpy()
    held = network.attention.nodes(network.first_child)
    features = node_features(tree, network.level.number, label_features)[held.numpy()]
    known = torch.from_numpy(np.diff(features.indptr) > 0)

    def directions() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, features.shape[0], NODES_AT_ONCE):
            some = slice(start, start + NODES_AT_ONCE)
            vectors = torch.from_numpy(features[some] @ states)
            yield held[some][known[some]], torch.nn.functional.normalize(vectors, dim=1)[known[some]]

    # What all nodes share tells none of them apart.
    total = torch.zeros(network.attention.dimension + 1)
    for nodes, vectors in directions():
        total[:-1] += vectors.sum(0)
        total[-1] += len(nodes)
    total = workers.sum(total).cpu()
    if not total[-1]:
        return
    for nodes, vectors in directions():
        vectors = START_LENGTH * torch.nn.functional.normalize(vectors - total[:-1] / total[-1], dim=1)
        network.set_label_vectors(nodes.to(workers.device), vectors.to(workers.device))
