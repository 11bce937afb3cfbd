"""The last passes of preparation: label features and word vectors, derived from the encoded documents."""

import logging
from typing import Any

from axml_ray.corpus.continued import keep_word_vectors
from axml_ray.corpus.labels import label_feature_sums
from axml_ray.corpus.labels.label_features import label_ranges
from axml_ray.corpus.labels.svmlight import convert_features
from axml_ray.corpus.preparation.passes import count_cooccurrences
from axml_ray.corpus.preparation.tasks import Workspace, group_by_size
from axml_ray.corpus.text import cooccurrence, word_vectors
from axml_ray.corpus.text.tokenizer import Tokenizer
from axml_ray.progress.heartbeat import Heartbeat

log = logging.getLogger(__name__)


def write_label_features(workspace: Workspace, words: int) -> None:
    """Write `label_features.npz`: from the file of the settings, else as centroids of the training documents.

    Args:
        workspace: where the features of the training documents are.
        words: size of the vocabulary.

    Raises:
        SettingsError: the file of label features is invalid.
    """
    settings, work, features = workspace.settings, workspace.directory, workspace.features
    path = work / "label_features.npz"
    if settings.label_features is not None:
        convert_features(settings.label_features, work / "labels.parquet", settings.max_terms, path)
        return
    counts = label_feature_sums.train_counts(work / "labels.parquet")
    files = len(list(features.glob("*.offsets.npy")))
    ranges = label_ranges(counts, label_feature_sums.mean_terms(features, files))
    groups = group_by_size(list(enumerate(ranges)), [1] * len(ranges), max(1, len(ranges) // 16))
    arguments: dict[str, Any] = {"files": files, "words": words, "max_terms": settings.max_terms, "features": features}
    if len(ranges) == 1:  # not worth a task
        label_feature_sums.sum_ranges(groups[0], **arguments)
    else:
        workspace.run(groups, label_feature_sums.sum_ranges, "summing label features", **arguments)
    label_feature_sums.assemble(path, features, len(ranges), words)


def write_word_vectors(workspace: Workspace, tokenizer: Tokenizer, tokens: int) -> tuple[float, int]:
    """Write `word_vectors.safetensors`: read from a file, learned from the training texts, or random.

    Args:
        workspace: where the training documents are.
        tokenizer: the tokenizer of the corpus.
        tokens: number of tokens of the training documents.

    Returns:
        The share of the words with a read or learned vector, and the dimension of the vectors.

    Raises:
        SettingsError: the file of word vectors is invalid.
    """
    settings, work = workspace.settings, workspace.directory
    path, coverage = settings.word_vectors_path, 0.0
    if path is not None:
        vectors, coverage = word_vectors.read_vectors(path, tokenizer.words, settings.seed)
        log.info("prepare: %s knows %.1f%% of the words", path, 100 * coverage)
    elif settings.word_vectors == "train":
        log.info("prepare: learning word vectors from the training texts")
        stripes = [
            workspace.stage / f"cooccurrences-{number:06d}.npz"
            for number in range(cooccurrence.number_of_stripes(tokens, len(tokenizer)))
        ]
        arguments: dict[str, Any] = {
            "paths": stripes,
            "files": sorted((work / "train").iterdir()),
            "words": len(tokenizer),
        }
        workspace.run(range(len(stripes)), count_cooccurrences, "counting neighbouring words", **arguments)
        with Heartbeat("prepare: learning word vectors"):
            known, learned = cooccurrence.factorise(stripes, settings.word_dimension, settings.seed)
        vectors, coverage = word_vectors.fill_unknown(known, learned, len(tokenizer), settings.seed)
    else:
        vectors = word_vectors.random_vectors(len(tokenizer), settings.word_dimension, settings.seed)
    if settings.continues is not None:
        align = path is None and settings.word_vectors == "train"
        vectors = keep_word_vectors(vectors, tokenizer.words, settings.continues, align=align)
    word_vectors.save_vectors(work / "word_vectors.safetensors", vectors)
    return coverage, vectors.shape[1]
