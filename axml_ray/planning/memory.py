"""The memory of one of W workers that train a level, part by part, in bytes.

Tensors that live from step to step (weights, Adam moments, running average, best weights) are counted exactly. What a
step needs in addition is an upper bound: the longest batch, gradients and activations at the same time, and as many
distinct rows as a step may touch. Values in matrix products have `width` bytes, 2 for bfloat16 and float16; all others
are float32.

Legend: B documents of a step, b of them encoded by this worker, T tokens, E dimension of word vectors, N hidden units,
D = 2N, F units of the first fully connected layer, U distinct rows, K nodes of a row, n nodes scored, W workers.
"""

import math
from dataclasses import dataclass, fields
from itertools import pairwise

from axml_ray.corpus.counts import Counts
from axml_ray.network.backends import cpu_backend, cuda_backend
from axml_ray.network.backends.base import Limits
from axml_ray.network.backends.cuda_backend import STORED_ON_DEVICE
from axml_ray.network.fast.cuda_lstm import graph_tokens
from axml_ray.planning.shapes import LevelShape
from axml_ray.settings import Experiment, NetworkSettings

FLOAT = 4
"""Bytes of a float32."""
MOMENTS = 2
"""Moments that Adam keeps of a parameter."""
DOCUMENT_BYTES = 9 * 8
"""Bytes of a training document in a worker: rows, lengths and places in the orders of batches, each an int64."""
GIB = 2**30
ACCELERATOR_PYTORCH, CPU_PYTORCH = GIB, GIB // 2
"""Memory of PyTorch, its libraries and their kernels: on an accelerator, and in main memory."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that one worker holds during one level: on its accelerator, or in main memory if it has none.

    On an accelerator, averages and best weights of large tables are in main memory.
    """

    label_table: int
    """Weights of this worker's rows of the label table."""
    word_table: int
    network: int
    """Weights of encoder and head."""
    moments: int
    """Adam's moments."""
    average: int
    """The running average of all trained weights."""
    best: int
    """The best weights by validation score."""
    gradients: int
    """Gradients of all weights, and the optimizer's copies of touched rows."""
    activations: int
    """Activations of the longest batch."""
    corpus: int
    """Rows and orders of the documents, and initial word vectors, if the worker trains in main memory."""
    pytorch: int
    """PyTorch, its libraries and their kernels."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))


def network_values(network: NetworkSettings, word_dimension: int) -> int:
    """Return the number of values in the LSTMs with their initial states, the head, and the weight of `evidence`."""
    hidden, units = network.hidden, network.fully_connected
    lstm = 4 * hidden * (word_dimension + hidden + 2)
    layers = sum(a * b + b for a, b in pairwise((2 * hidden, *units, 1)))
    return 2 * lstm + 4 * hidden + layers + int(network.evidence)


def distinct_rows(draws: int, rows: int) -> int:
    """Return the expected number of distinct rows among `draws` uniform draws from `rows`.

    This is an upper bound, since other distributions repeat rows more often.
    """
    # The expectation is rows · (1 - (1 - 1/rows)^draws), here in its limit for many rows.
    return min(rows, draws, math.ceil(rows * -math.expm1(-draws / rows)))


def touched_table_values(shape: LevelShape, hidden: int, workers: int, batch: int) -> int:
    """Return the number of values in the rows of the label table that a step reads on one worker."""
    rows = -(-shape.rows // workers)
    if shape.parents is not None:
        rows = distinct_rows(-(-batch * shape.parents // workers), rows)
    return rows * shape.block * 2 * hidden


def gradient_bytes(settings: Experiment, counts: Counts, shape: LevelShape, workers: int, accelerator: bool) -> int:
    """Return the bytes of the gradients of the label table's touched rows, of the step's words, of encoder and head.

    On an accelerator, the table's gradients are scaled in one piece, and all touched rows are copied for Adam together
    with both moments.
    """
    batch = settings.training.batch_size
    table = touched_table_values(shape, settings.network.hidden, workers, batch)
    tables = 1 if not accelerator else 2 if shape.parents is None else 2 + MOMENTS
    network = network_values(settings.network, counts.word_dimension)
    vectors = 0
    if settings.network.train_embeddings:
        read_here = min(counts.words, -(-batch // workers) * counts.longest)
        read_by_all = min(counts.words, batch * counts.longest)
        exchanged = 3 * read_by_all if workers > 1 else 0  # the gathered shards, their concatenation, and their sum
        vectors = (2 * read_here + exchanged + (1 + MOMENTS) * read_by_all * accelerator) * counts.word_dimension
    return FLOAT * (tables * table + vectors + (1 + (workers > 1)) * network)


def encoder_bytes(settings: Experiment, counts: Counts, workers: int, width: int, accelerator: bool) -> int:
    """Return the bytes of one worker's encoder activations, kept for the backward pass.

    For each token: word vectors before and after dropout and reversed, 5 E; gates, cells and states of both LSTMs, the
    concatenated states before and after dropout, and masks, 28 N. oneDNN adds 12 float32 of the larger of E and N,
    and on a processor without instructions for bfloat16 the LSTMs read and return float32, 2 (E + N). cuDNN's LSTMs
    compute on copies of the word vectors and states of both directions, which each CUDA graph has for itself. The
    factors were measured on a CPU (tests/planning/test_level_memory.py); cuDNN's were not.
    """
    dimension, hidden = counts.word_dimension, settings.network.hidden
    if accelerator:
        # Together the graphs hold this many times what the one of the longest texts does: those of whole batches, and
        # those of the smaller ones of an epoch's last pool.
        widths = {graph_tokens(tokens) for tokens in range(1, counts.longest + 1)}
        graphs = 2 * sum(widths) / max(widths)
        workspace = int(width * (8 * dimension + graphs * 4 * (dimension + hidden)))
    else:
        workspace = FLOAT * (12 * max(dimension, hidden) + (2 * (dimension + hidden) if width < FLOAT else 0))
    tokens = -(-settings.training.batch_size // workers) * padded(counts.longest)
    return tokens * (width * (5 * dimension + 28 * hidden) + workspace)


def padded(tokens: int) -> int:
    """Return the number of tokens of a text in a batch, a multiple of 8."""
    return -(-tokens // 8) * 8


def pass_bytes(
    settings: Experiment, counts: Counts, shape: LevelShape, workers: int, width: int, limits: Limits
) -> int:
    """Return the bytes of the fused forward and backward pass over a level.

    They are the states of all documents of the step and their gradients, the rows of the label table that are read, and
    scores, attention weights and contexts of one group of documents. The backend decides the size of chunks and groups.
    """
    network, documents = settings.network, settings.training.batch_size
    dimension, units = 2 * network.hidden, sum(network.fully_connected)
    tokens = padded(counts.longest)
    states = documents * tokens * ((4 + 2 * (workers > 1)) * dimension + 3 * network.fully_connected[0])
    sums = (
        documents * tokens * (dimension + network.fully_connected[0])
    )  # float32 sums of gradients over chunks of labels
    per_node = 2 * tokens + 2 * units
    rows = -(-shape.rows // workers)
    if shape.parents is None:
        chunk = max(1, limits.nodes_of_chunk(rows, documents, tokens, per_node))
        at_once = max(1, limits.documents_of_group(documents, chunk, per_node))
        # The chunk's scores of all documents; its queries and their gradient.
        values = chunk * documents * tokens + 2 * chunk * dimension
        nodes, queries, numbers = chunk, 0, documents * (rows + 3 * chunk)
    else:
        # An upper bound of a document's parents in one shard: the mean and three standard deviations.
        mean = shape.parents / workers
        parents = min(shape.parents, math.ceil(mean + (3 * math.sqrt(mean) if workers > 1 else 0)))
        chunk = max(1, limits.columns_of_chunk(parents, shape.block, documents, per_node))
        nodes = chunk * shape.block
        at_once = max(1, limits.documents_of_group(documents, nodes, per_node))
        values = touched_table_values(shape, network.hidden, workers, documents)
        # Queries and their gradients, these also in float32.
        queries, numbers = (2 + FLOAT // width) * dimension, documents * (2 * parents * shape.block + 3 * nodes)
    # Scores, attention weights and the gradients of both; contexts and their gradients.
    values += at_once * nodes * (4 * tokens + 2 * units + queries)
    return width * (states + values) + FLOAT * (sums + numbers)


def level_memory(
    settings: Experiment,
    counts: Counts,
    shape: LevelShape,
    *,
    workers: int,
    accelerator: bool,
    width: int,
) -> Memory:
    """Return the memory of one of W workers that train a level (paper, section 2.6); `resources` are not read."""
    network, hidden = settings.network, settings.network.hidden
    # Rank 0 has the most rows.
    table = FLOAT * -(-shape.rows // workers) * shape.block * 2 * hidden
    word_table = FLOAT * counts.words * counts.word_dimension
    rest = FLOAT * network_values(network, counts.word_dimension)
    trained = table + rest + (word_table if network.train_embeddings else 0)
    limits = cuda_backend.LIMITS if accelerator else cpu_backend.LIMITS
    stored = trained
    if accelerator:  # copies of large tables that are seldom read are in main memory, see `store_like`
        stored = sum(size for size in (table, rest, trained - table - rest) if size <= STORED_ON_DEVICE)
    encoder = encoder_bytes(settings, counts, workers, width, accelerator)
    return Memory(
        label_table=table,
        word_table=word_table,
        network=rest,
        moments=MOMENTS * trained,
        average=stored * settings.training.averages_at(shape.number),
        best=stored,
        gradients=gradient_bytes(settings, counts, shape, workers, accelerator),
        activations=encoder + pass_bytes(settings, counts, shape, workers, width, limits),
        corpus=0 if accelerator else corpus_bytes(counts),
        pytorch=ACCELERATOR_PYTORCH if accelerator else CPU_PYTORCH,
    )


def corpus_bytes(counts: Counts) -> int:
    """Return the bytes of the corpus in a worker's own memory: rows and orders of documents, initial word vectors.

    Words and labels are in one file that all processes of a node memory-map, so the system may evict them from memory.
    """
    return DOCUMENT_BYTES * counts.documents + FLOAT * counts.words * counts.word_dimension


def candidates_bytes(counts: Counts, shape: LevelShape, settings: Experiment) -> int:
    """Return the bytes of a level's saved beams: nodes, scores and parents of each training document.

    Workers memory-map these files, so those on one machine share them, and the system may evict them from memory.
    """
    candidate = 4 + 4 + (4 if settings.training.include_true_parents else 0)
    return counts.documents * min(settings.tree.beam, shape.nodes) * candidate


def main_memory(counts: Counts, memory: Memory) -> int:
    """Return the bytes of main memory of a worker that trains on an accelerator.

    They are the corpus, PyTorch, the average and the best values of large tables, and the copy of the training state
    that is made while a checkpoint is written.
    """
    weights = memory.label_table + memory.network + memory.word_table
    # At most the average and the best weights, once where they are kept and once in the checkpoint's copy. PyTorch
    # rounds page-locked memory, in which they are kept, up to a power of two.
    large = [size for size in (memory.label_table, memory.word_table) if size > STORED_ON_DEVICE]
    page_locked = sum(1 << (size - 1).bit_length() for size in large)
    return corpus_bytes(counts) + ACCELERATOR_PYTORCH + weights + memory.moments + 2 * weights + 2 * page_locked
