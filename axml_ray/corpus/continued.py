"""A corpus that continues another one, `corpus.continues`, so that trained networks can go on training with it.

- The trained labels of the other corpus keep their ids; new ones follow, ranked by frequency. The labels without
  training documents come last, as in every corpus, so theirs are the only ids that can change.
- Its training texts stay training texts: a document is drawn for validation only if its draw is not above those of the
  other corpus's validation documents, and the test split is drawn by a threshold. Of duplicates, old texts are kept.
- Words are numbered anew, by frequency; training finds the old weights of a word by its spelling. Words of the other
  corpus keep their initial vectors, since frozen ones are part of what its networks learned from.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.preparation.split_assignment import TEST, VALID
from axml_ray.corpus.preparation.staging import text_digests
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.text.composition import composed
from axml_ray.settings import CorpusSettings

NAMED = 3
"""Number of labels that an error names."""
MAX_LOST_SHARE = 0.1
"""Largest share of the old training texts that may be missing."""


def previous_words(old: Sequence[str], new: Sequence[str]) -> np.ndarray:
    """Return the old id of each word of a new vocabulary, int64 [V], -1 for a word that the old one lacks."""
    ids = {word: i for i, word in enumerate(old)}
    return np.fromiter((ids.get(word, -1) for word in new), np.int64, len(new))


def keep_word_vectors(vectors: np.ndarray, words: Sequence[str], directory: Path, *, align: bool) -> np.ndarray:
    """Return `vectors` (float32 [V, E]) with the vectors of the corpus in `directory` for the `words` that it knows.

    With `align`, `vectors` were learned anew, and are rotated into the space of the old ones by the orthogonal matrix
    that brings the words of both corpora closest together (Schönemann 1966). They stay as they are if dimensions
    differ.
    """
    corpus = Corpus.open(directory)
    before = corpus.word_vectors()
    if before.shape[1] != vectors.shape[1]:
        return vectors
    positions = previous_words(corpus.tokenizer.words, words)
    known = positions >= 0
    kept = before[positions[known]]
    if align:
        left, _, right = np.linalg.svd(vectors[known].T.astype(np.float64) @ kept)
        vectors = (vectors @ (left @ right)).astype(np.float32)
    vectors[known] = kept
    return vectors


def trained_labels(directory: Path) -> pa.Array:
    """Return the labels of a prepared corpus that have training documents, string, in the order of their ids.

    They are composed here because those of a corpus that an earlier version prepared need not be.
    """
    table = pq.read_table(directory / "labels.parquet", columns=["label", "count"])
    labels = table["label"].filter(pc.greater(table["count"], 0)).to_pylist()
    return pa.array(map(composed, labels), pa.string())


def keep_ids(table: pa.Table, kept: pa.Array) -> pa.Table:
    """Return ranked labels in another order: those of `kept` first and in its order, those without documents last.

    `table` has the columns `label` and `train`, the number of training documents.
    """
    before = pc.fill_null(pc.index_in(table["label"], kept), len(kept)).to_numpy()
    is_untrained = table["train"].to_numpy() == 0
    order = np.lexsort((np.arange(table.num_rows), before, is_untrained))
    return table.take(pa.array(order)).combine_chunks()


def check_kept_labels(directory: Path, continued: Path) -> None:
    """Check that all trained labels of a continued corpus have their ids in the corpus of `directory`.

    Raises:
        SettingsError: one of them has no training documents any more.
    """
    kept, now = trained_labels(continued), trained_labels(directory)
    if now[: len(kept)].equals(kept):
        return
    lost = kept.filter(pc.invert(pc.is_in(kept, now)))
    names = ", ".join(map(repr, lost[:NAMED].to_pylist())) + (", …" if len(lost) > NAMED else "")
    raise SettingsError(
        f"corpus.train: {len(lost):,} labels of {continued} have no training text any more ({names}); a network cannot "
        "lose labels: give all texts of that corpus too, with its corpus.min_label_count and without a smaller "
        "corpus.max_train_documents, or train a new run without --continue"
    )


def check_kept_texts(continued: Path, digests: np.ndarray, split: np.ndarray) -> Iterator[str]:
    """Check that the training texts of a continued corpus are there again, and for training; yield warnings.

    A text that is read differently is a new one, which may be drawn for validation or test, though the networks were
    trained on it.

    Args:
        continued: directory of the continued corpus.
        digests: the first halves of the digests of all texts now, uint64 [documents].
        split: the split to which each is assigned, int8 [documents].

    Raises:
        SettingsError: more than `MAX_LOST_SHARE` of them are missing.
    """
    # Composed here because those of a corpus that an earlier version prepared need not be.
    texts = (list(map(composed, some)) for some in _texts(Corpus.open(continued), "train"))
    old = np.concatenate([text_digests(some)[0][:, 0] for some in texts])
    lost = int((~np.isin(old, digests)).sum())
    scored = int(np.isin(digests[(split == VALID) | (split == TEST)], old).sum())
    if scored:
        yield (
            f"{scored:,} training texts of {continued} are validation or test texts now, although networks were "
            "trained on them, so scores will be too good; leave them out of the files"
        )
    if not lost:
        return
    problem = f"{lost:,} of {len(old):,} training texts of {continued} are not among the texts any more"
    if lost > MAX_LOST_SHARE * len(old):
        raise SettingsError(
            f"corpus.train: {problem}, so other versions of them could be drawn for validation or test, although "
            "networks were trained on them; give the old files unchanged, or train a new run without --continue"
        )
    yield f"{problem}; if they were changed, scores of the new versions may be too good"


def _texts(corpus: Corpus, split: str) -> Iterator[list[str]]:
    """Yield the texts of a split, some thousands at a time."""
    for file in map(pq.ParquetFile, corpus.files(split)):
        for i in range(file.num_row_groups):
            yield file.read_row_group(i, ["text"])["text"].to_pylist()


def largest_valid_draw(settings: CorpusSettings) -> int | None:
    """Return the largest draw with which a document may be drawn for validation, None for no limit.

    Raises:
        SettingsError: the validation documents of the continued corpus were given, and now they would be drawn.
    """
    if settings.continues is None or settings.valid:
        return None
    corpus = Corpus.open(settings.continues)
    if corpus.manifest["settings"]["valid"]:
        raise SettingsError(
            f"corpus.valid: {settings.continues} has validation files; name them, since drawn documents would be among "
            "those that its networks were trained on"
        )
    return max(int(text_digests(texts)[1].max()) for texts in _texts(corpus, "valid"))
