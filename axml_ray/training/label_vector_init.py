"""Initialisation of the attention parameters from label features instead of at random. Not in the paper.

The encoder, in the state in which a level's training begins, reads the training texts once, and the mean hidden state
of each word is computed. A node's vector then points from the mean of all words to the weighted mean of its own words:
those of its TF-IDF centroid, from which the tree was built, or those of its labels' names. So a level starts as a
nearest-centroid classifier in the space of its encoder, which is worth many epochs if there are few documents
(docs/LOG.md says where it was measured).

Shapes: V words, D hidden dimension, L labels, n nodes of a level, B documents, T tokens.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_features import apply_tf_idf, bag_of_words, idf_weights
from axml_ray.corpus.labels.label_name_texts import name_texts
from axml_ray.corpus.store import Corpus
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import autocast
from axml_ray.network.level_network import LevelNetwork
from axml_ray.settings import Precision
from axml_ray.training.batches import padded_tokens
from axml_ray.training.beam_search import scoring_batches
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.progress import PassProgress, Report
from axml_ray.tree.inspection import node_sums
from axml_ray.tree.label_tree import LabelTree

START_LENGTH = 2.0
"""Length of an initialised vector: short enough that training can still turn it. Of 0.5, 2 and 8, 2 learned fastest."""
NAME_WORDS = 500
"""Most words of a label's name that are read."""
WORDS_AT_ONCE = 15 << 20
"""Words whose states are added to one partial sum: a float32 counter stops growing by 1 at 2^24."""
TEXTS_AT_ONCE = 1 << 15
"""Texts whose words are counted at a time."""
NODES_AT_ONCE = 1 << 14
"""Nodes whose vectors are computed at a time."""


@torch.inference_mode()
def mean_word_states(
    network: LevelNetwork,
    tokens: Ragged,
    vocab_size: int,
    precision: Precision,
    context: DistributedContext,
    report: Report = lambda record: None,
) -> Tensor:
    """Return the mean hidden state of each word less the mean over all tokens; all workers must call it.

    The network, which is on `context.device`, is put into evaluation mode. Each worker reads its share of the training
    documents.

    Returns:
        float32 [V, D], zero for a word that does not occur.
    """
    network.eval()
    # The last column counts tokens.
    total = torch.zeros(vocab_size, network.attention.dimension + 1, device=context.device)
    partial, tokens_in_partial = torch.zeros_like(total), 0
    all_lengths = tokens.lengths
    batches = scoring_batches(all_lengths, 1, DistributedContext(device=context.device))
    own_batches = batches[context.rank :: context.world_size]
    progress = PassProgress(report, network.level.number, "read_so_far", sum(map(len, own_batches)))
    backend = backend_for(context.device)
    for rows in own_batches:
        lengths = torch.from_numpy(all_lengths[rows])
        padded = padded_tokens(tokens, rows, int(lengths.max()))
        local = backend.stage({"padded": padded, "lengths": lengths}).to(context.device)
        with autocast(context.device, precision):
            states = network.encode(local["padded"], local["lengths"]).float()
        is_word = torch.arange(padded.shape[1], device=context.device) < local["lengths"][:, None]
        # Padding adds zeros to its own row: selecting the words would make the CPU wait for their number.
        counted = torch.nn.functional.pad(states, (0, 1), value=1.0) * is_word[:, :, None]
        backend.add_rows_(partial, local["padded"].flatten(), counted.flatten(0, 1))
        tokens_in_partial += int(lengths.sum())
        if tokens_in_partial >= WORDS_AT_ONCE:
            total += partial
            partial.zero_()
            tokens_in_partial = 0
        progress.add(len(rows))
    total = context.sum(total.add_(partial))
    count = total[:, -1:]
    mean = total[:, :-1].sum(0) / count.sum()
    return (total[:, :-1] / count.clamp(min=1) - mean) * (count > 0)


def label_name_features(corpus: Corpus, tokens: Ragged) -> sparse.csr_matrix:
    """Return the TF-IDF of the words of each trained label's name, float32 CSR [L, V], rows of length one.

    A label without a name, or whose name has none of the words of the training documents, has its TF-IDF centroid.

    Args:
        corpus: a prepared corpus; a label without a readable name is its own name.
        tokens: word ids of the training documents, from which the document frequencies are counted.
    """
    centroids = corpus.label_features()
    frequency = np.zeros(centroids.shape[1], dtype=np.int64)
    for start in range(0, len(tokens), TEXTS_AT_ONCE):
        some = tokens.take(np.arange(start, min(start + TEXTS_AT_ONCE, len(tokens))))
        frequency += np.bincount(bag_of_words(some, len(frequency)).indices, minlength=len(frequency))
    names = name_texts(corpus.labels, corpus.tokenizer, NAME_WORDS)
    rows = bag_of_words(names.tokens, len(frequency))
    rows.data[frequency[rows.indices] == 0] = 0  # the encoder has no mean state of a word that does not occur
    rows.eliminate_zeros()
    apply_tf_idf(rows, idf_weights(frequency, len(tokens)))
    with_words = np.flatnonzero(np.diff(rows.indptr))
    named = names.labels.values[with_words]
    unnamed = np.setdiff1d(np.arange(corpus.trained), named)
    stacked = sparse.vstack([rows[with_words], centroids[unnamed]], format="csr")
    return stacked[np.argsort(np.concatenate([named, unnamed]))]  # in the order of label ids


@torch.no_grad()
def initialise_attention(
    network: LevelNetwork,
    tree: LabelTree,
    tokens: Ragged,
    label_features: sparse.csr_matrix,
    precision: Precision,
    context: DistributedContext,
    report: Report = lambda record: None,
) -> None:
    """Set the vector of each node of the network's level; a node without features keeps its random vector.

    All workers must call it; each sets the vectors of its shard. The network is on `context.device`, with the encoder
    that training will begin with.

    Args:
        network: network of the level.
        tree: the label tree.
        tokens: word ids of the training documents.
        label_features: features of all labels by word, CSR [L, V].
        precision: number format of matrix products.
        context: the distributed context.
        report: called at times with a record of progress.
    """
    states = mean_word_states(network, tokens, label_features.shape[1], precision, context, report).cpu().numpy()
    held = network.attention.nodes(network.first_child)
    features = node_sums(tree, network.level.number, label_features)[held.numpy()]
    has_features = torch.from_numpy(np.diff(features.indptr) > 0)

    def directions() -> Iterator[tuple[Tensor, Tensor]]:
        """Yield nodes that have features, and their mean states scaled to length one."""
        for start in range(0, features.shape[0], NODES_AT_ONCE):
            block = slice(start, start + NODES_AT_ONCE)
            vectors = torch.from_numpy(features[block] @ states)
            yield held[block][has_features[block]], torch.nn.functional.normalize(vectors, dim=1)[has_features[block]]

    # The mean over all nodes of all shards is removed: what all nodes share tells none of them apart. They are computed
    # twice instead of being kept, as they are as large as the label table.
    total = torch.zeros(network.attention.dimension + 1)
    for nodes, vectors in directions():
        total[:-1] += vectors.sum(0)
        total[-1] += len(nodes)
    total = context.sum(total).cpu()
    if not total[-1]:
        return
    for nodes, vectors in directions():
        vectors = START_LENGTH * torch.nn.functional.normalize(vectors - total[:-1] / total[-1], dim=1)
        network.set_label_vectors(nodes.to(context.device), vectors.to(context.device))
