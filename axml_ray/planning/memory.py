"""What one of W workers holds while it trains a level, part by part, bytes.

What is held from step to step (weights, moments, average, best weights) is counted exactly. What a step needs on top is
a bound: the longest batch, gradients and activations at the same time, and as many distinct rows as a step may touch.
Matrix products are of `width` bytes a value, 2 for bfloat16; all else is float32.

Legend: B documents of a step, b of them encoded here, T tokens, E of word vectors, N hidden units, D = 2N, F units of
the first fully connected layer, U distinct rows, K nodes of a row, n nodes scored, W workers.
"""

import math
from dataclasses import dataclass, fields
from itertools import pairwise

from axml_ray.network.fused_attention import ACCELERATOR_GROUP, CHUNK_SCORES, CPU_GROUP
from axml_ray.planning.shapes import Counts, LevelShape
from axml_ray.settings import Experiment, NetworkSettings, TrainingSettings

FLOAT = 4
MOMENTS = 2
GIB = 2**30
ACCELERATOR_PYTORCH, CPU_PYTORCH = GIB, GIB // 2
"""What PyTorch, its libraries and their kernels hold: on an accelerator, and of main memory in any case."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one worker during one level, bytes, where it trains: on its accelerator, or else in main memory."""

    label_table: int
    """Weights of this worker's rows."""
    word_table: int
    """Word vectors."""
    network: int
    """Weights of encoder and head."""
    moments: int
    """Adam's."""
    average: int
    """The running average of all trained weights."""
    best: int
    """The best scored weights."""
    above: int
    """What the level above handed down, all its weights but the table, which stay until the level is finished."""
    gradients: int
    """Of all weights, and what the optimizer copies of touched rows."""
    activations: int
    """Of the longest batch."""
    corpus: int
    """Texts and first word vectors, where main memory is what a worker trains in."""
    pytorch: int
    """PyTorch itself."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def table_values(shape: LevelShape, hidden: int, workers: int) -> int:
    """Values of a worker's rows of the label table; the first worker has the most rows."""
    return -(-shape.rows // workers) * shape.block * 2 * hidden


def word_values(counts: Counts) -> int:
    """Values of the word table."""
    return counts.words * counts.word_dimension


def network_values(network: NetworkSettings, word_dimension: int) -> int:
    """Values of the LSTMs with their first states, the head, and the evidence's weight."""
    hidden, units = network.hidden, network.fully_connected
    lstm = 4 * hidden * (word_dimension + hidden + 2)
    layers = sum(a * b + b for a, b in pairwise((2 * hidden, *units, 1)))
    return 2 * lstm + 4 * hidden + layers + int(network.evidence)


def copies(training: TrainingSettings) -> int:
    """Times that a trained value is held: weight, moments, best, average."""
    return 1 + MOMENTS + 1 + int(training.averaging)


def distinct_rows(draws: int, rows: int) -> int:
    """Rows that so many draws touch, if all are drawn alike often: others repeat more."""
    return min(rows, draws, math.ceil(rows * -math.expm1(-draws / rows)))


def parents_here(shape: LevelShape, workers: int) -> int:
    """Most parents of a document in one shard: the mean, and three deviations."""
    parents = shape.parents or 0
    return min(parents, math.ceil(parents / workers + (3 * math.sqrt(parents / workers) if workers > 1 else 0)))


def touched_table_values(shape: LevelShape, hidden: int, workers: int, batch: int) -> int:
    """Values of the label table's rows that a step reads here."""
    rows = -(-shape.rows // workers)
    if shape.parents is not None:
        rows = distinct_rows(-(-batch * shape.parents // workers), rows)
    return rows * shape.block * 2 * hidden


def gradient_bytes(settings: Experiment, counts: Counts, shape: LevelShape, workers: int, accelerator: bool) -> int:
    """Of gradients: those of the table's touched rows, of the step's words, of encoder and head.

    An accelerator scales all gradients of the table at once, and copies all touched rows for Adam, with both moments.
    """
    batch = settings.training.batch_size
    table = touched_table_values(shape, settings.network.hidden, workers, batch)
    tables = 1 if not accelerator else 2 if shape.parents is None else 2 + MOMENTS
    network = network_values(settings.network, counts.word_dimension)
    words = 0
    if settings.network.train_embeddings:
        own = min(counts.words, -(-batch // workers) * counts.longest)
        every = min(counts.words, batch * counts.longest)
        exchanged = 3 * every if workers > 1 else 0  # all workers' rows in parts, in one piece, and their sum
        words = (2 * own + exchanged + (1 + MOMENTS) * every * accelerator) * counts.word_dimension
    return FLOAT * (tables * table + words + (1 + (workers > 1)) * network)


def encoder_bytes(settings: Experiment, counts: Counts, workers: int, width: int, accelerator: bool) -> int:
    """Of one worker's encoder, kept for its backward pass.

    For each token: the words before and after dropout and turned round, 5 E; gates, cells and states of both LSTMs,
    the joined states before and after dropout, and masks, 28 N. oneDNN adds 12 float32 of the larger of E and N;
    cuDNN's LSTMs compute in float32, on words of their own, 2 E. The factors are measured on a CPU
    (tests/test_plan.py); cuDNN's have not been.
    """
    words, hidden = counts.word_dimension, settings.network.hidden
    lstm = FLOAT if accelerator else width
    workspace = FLOAT * (2 * words if accelerator else 12 * max(words, hidden))
    tokens = -(-settings.training.batch_size // workers) * padded(counts.longest)
    return tokens * (width * 5 * words + lstm * 28 * hidden + workspace)


def padded(tokens: int) -> int:
    """Tokens of a text in a batch."""
    return -(-tokens // 8) * 8


def pass_bytes(settings: Experiment, counts: Counts, shape: LevelShape, workers: int, width: int, group: int) -> int:
    """Of the pass over a level, forward and straight back: states of all documents of the step and their gradients,
    the rows that are read, and scores, weights and contexts of one group of documents.

    Args:
        settings: the experiment.
        counts: of its corpus.
        shape: of the level.
        workers: W.
        width: bytes of a value.
        group: most values of a group, as in `fused_attention`.
    """
    network, documents = settings.network, settings.training.batch_size
    dimension, units = 2 * network.hidden, sum(network.fully_connected)
    tokens = padded(counts.longest)
    states = documents * tokens * ((4 + 2 * (workers > 1)) * dimension + 3 * network.fully_connected[0])
    sums = documents * tokens * (dimension + network.fully_connected[0])  # of gradients, over chunks of labels
    each = 2 * tokens + 2 * units
    rows = -(-shape.rows // workers)
    if shape.parents is None:
        chunk = max(1, min(rows, CHUNK_SCORES // (documents * tokens), group // each))
        at_once = max(1, min(documents, group // (chunk * each)))
        # a chunk's scores of all documents; its queries and their gradient
        values = chunk * documents * tokens + 2 * chunk * dimension
        nodes, queries, numbers = chunk, 0, documents * (rows + 3 * chunk)
    else:
        parents = parents_here(shape, workers)
        chunk = max(1, min(parents, group // (shape.block * each)))
        nodes = chunk * shape.block
        at_once = max(1, min(documents, group // (nodes * each)))
        values = touched_table_values(shape, network.hidden, workers, documents)
        queries, numbers = 2 * dimension, documents * (2 * parents * shape.block + 3 * nodes)
    # scores, weights, and the gradients of both; contexts and their gradients
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
    """Of one of so many workers that train a level.

    Args:
        settings: the experiment; its `resources` aren't read.
        counts: of its corpus.
        shape: of the level.
        workers: W.
        accelerator: whether they train on one.
        width: bytes of a value in matrix products.
    """
    network, hidden = settings.network, settings.network.hidden
    table = FLOAT * table_values(shape, hidden, workers)
    words = FLOAT * word_values(counts)
    rest = FLOAT * network_values(network, counts.word_dimension)
    trained = table + rest + (words if network.train_embeddings else 0)
    group = ACCELERATOR_GROUP if accelerator else CPU_GROUP
    encoder = encoder_bytes(settings, counts, workers, width, accelerator)
    return Memory(
        label_table=table,
        word_table=words,
        network=rest,
        moments=MOMENTS * trained,
        average=trained * settings.training.averaging,
        best=trained,
        above=words + rest if shape.number > 1 else 0,
        gradients=gradient_bytes(settings, counts, shape, workers, accelerator),
        activations=encoder + pass_bytes(settings, counts, shape, workers, width, group),
        corpus=0 if accelerator else corpus_bytes(counts),
        pytorch=ACCELERATOR_PYTORCH if accelerator else CPU_PYTORCH,
    )


def corpus_bytes(counts: Counts) -> int:
    """Of what every worker holds of the corpus in main memory: word ids and first word vectors."""
    tokens = round(counts.documents * counts.tokens) * 4 + (counts.documents + 1) * 8
    return tokens + FLOAT * word_values(counts)


def candidates_bytes(counts: Counts, shape: LevelShape, settings: Experiment) -> int:
    """Of the files that a scored level leaves for the one below: nodes and scores of each training document, and its
    parents with true ones.

    Workers map it, so those of one machine share what of it is in memory, and the system may drop it.
    """
    kept = 4 + 4 + (4 if settings.training.true_candidates else 0)
    return counts.documents * min(settings.tree.beam, shape.nodes) * kept


def main_memory(counts: Counts, memory: Memory) -> int:
    """What a worker that trains on an accelerator needs of main memory beside it: the corpus, PyTorch, and what a
    checkpoint brings over before it is written."""
    state = memory.label_table + memory.network + memory.word_table + memory.moments + memory.average + memory.best
    return corpus_bytes(counts) + ACCELERATOR_PYTORCH + state
