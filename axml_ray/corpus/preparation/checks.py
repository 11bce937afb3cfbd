"""Checks of the staged input, which find what no single record shows: repeated ids, unsplit labels, and so on."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.preparation.split_assignment import DROPPED
from axml_ray.corpus.preparation.staging import StagedBlock, StagedInput, reader_number
from axml_ray.corpus.records.records import Document
from axml_ray.corpus.records.values import URI, are_one_hot
from axml_ray.corpus.text.tokenizer import SEPARATOR, UNSPACED
from axml_ray.settings import SPLITS

SEPARATORS = {"|": "|", ";": ";", ",": ",", "\t": "tab", "/": "/"}
"""Common separators of labels in a cell, and how settings and messages write them."""
MIN_SINGLE_SHARE, MIN_CONTAINING_SHARE = 0.95, 0.5
"""Minimum shares of the labelled texts that have exactly one label, and whose label contains another separator."""
MAX_EXAMPLE_LETTERS = 60
MIN_PHRASE, MIN_PHRASE_SHARE = 6, 0.1
"""A word with at least this number of characters of scripts without blanks is a phrase, and the least share of phrases,
by their characters, in all words and such characters. Texts whose words were separated beforehand have few phrases."""
MAX_PHRASE_BLOCKS = 16
"""Number of blocks in which phrases are looked for."""
MAX_REPEATED_SHARE = 0.25
"""Maximum share of the texts that repeat another one of their split."""
MAX_UNSEEN_SHARE = 0.5
"""Maximum share of the labels of validation or test texts that no training text has."""
MIN_KNOWN_TEXTS_SHARE = 0.1
"""Minimum share of the validation or test texts that are training texts, too."""
UNUSUAL_BLANKS = r"\p{Cf}|[^\P{Z} ]|[\t\n\r]|  "
"""Pattern (RE2) of what is hardly seen in a label: invisible characters, and blanks other than single spaces."""
IN_BRACKETS = r"^\[[^\[\]]*\]$|^\{[^{}]*\}$"
"""Pattern of a label in brackets."""


def check_ids(staged: StagedInput, given: np.ndarray) -> None:
    """Check that no two documents that were given for the same split, and are kept, have the same id.

    Predictions are joined, and runs compared, by ids. Hashes of the ids are compared; the files are read again only to
    name the lines of a repeated one. `given` (int8 [documents]) is the split for which each was given.

    Raises:
        SettingsError: an id is repeated.
    """

    def read_again(document: int) -> Document:
        block = int(np.searchsorted(staged.starts, document, side="right")) - 1
        number = reader_number(staged.paths[block])
        first_block = [reader_number(path) for path in staged.paths].index(number)
        documents = (record for record in staged.readers[number].read() if isinstance(record, Document))
        return next(islice(documents, document - int(staged.starts[first_block]), None))

    for split, name in enumerate(SPLITS):
        kept = np.flatnonzero((given == split) & (staged.split != DROPPED))
        order = kept[np.argsort(staged.facts["id"][kept], kind="stable")]
        hashes = staged.facts["id"][order]
        repeated = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
        for place in repeated[np.argsort(order[repeated])].tolist():  # the first in the order of the input
            first, second = map(read_again, order[place - 1 : place + 1].tolist())
            if first.id == second.id:  # else only the hashes are equal
                raise SettingsError(
                    f"corpus.{name}: {first.file}:{first.line} and {second.file}:{second.line} have the same id, "
                    f"{first.id!r}; give each document its own, or set corpus.id_field to a field that no record has, "
                    "so that file and line are the id"
                )


def check_titles(paths: Sequence[str], field: str) -> None:
    """Check that a text in staged blocks has a title from `field`; if none has, it is misspelt: a SettingsError."""
    for path in paths:
        texts = StagedBlock(Path(path)).table("documents")["text"]
        if not pc.all(pc.starts_with(texts, f" {SEPARATOR} ")).as_py():
            return
    raise SettingsError(
        f"corpus.title_field: no document has a title in {field!r}; name the field of the titles, or leave it out"
    )


def check_not_one_hot(paths: Sequence[str]) -> None:
    """Check that the labels in staged blocks are not vectors of ones and zeros, which is a SettingsError."""
    blocks = [StagedBlock(Path(path)) for path in paths]
    if not all((block.directory / "indicators.npy").is_file() for block in blocks):
        return
    lengths = np.concatenate([block.array("indicators") for block in blocks])
    if are_one_hot(lengths):
        raise SettingsError(
            f"corpus.labels_field: texts have lists of up to {lengths.max()} numbers, each 0 or 1 (one-hot vectors), "
            'instead of labels; write the names of the labels that a text has, such as ["art", "law"], or make a '
            "column of 0 and 1 for each label and list them: labels_field: art,law. If the labels are called 0 and 1, "
            "write each once"
        )


def separator_warning(paths: Sequence[str], separator: str) -> str | None:
    """Return a warning if nearly every text has exactly one label and most of these contain another separator.

    If a cell such as `commands|git-man|file` is split at `;`, it is one label, which nearly no other text has. Nothing
    fails, but the model is useless. `separator` is empty if the files contain lists of labels, which are not split.
    """
    blocks = [StagedBlock(Path(path)) for path in paths]
    labelled = sum(int((block.rows("label").lengths > 0).sum()) for block in blocks)
    single = sum(int((block.rows("label").lengths == 1).sum()) for block in blocks)
    if not labelled or single < MIN_SINGLE_SHARE * labelled:
        return None
    containing = {other: 0 for other in SEPARATORS if other != separator}
    examples: dict[str, str] = {}
    for block in blocks:
        rows, names = block.rows("label"), block.table("labels")["label"]
        texts = np.bincount(rows.take(np.flatnonzero(rows.lengths == 1)).values, minlength=len(names))
        is_uri = pc.match_substring_regex(names, f"^{URI}").to_numpy()
        for other in containing:
            matches = pc.match_substring(names, other).to_numpy() & (texts > 0)
            # A URI may contain any of them; one separates labels where another URI follows.
            matches &= ~is_uri | pc.match_substring_regex(names, rf"{re.escape(other)}\s*{URI}").to_numpy()
            containing[other] += int(texts[matches].sum())
            if matches.any():
                examples.setdefault(other, names[int(np.flatnonzero(matches)[0])].as_py()[:MAX_EXAMPLE_LETTERS])
    other = max(containing, key=lambda candidate: containing[candidate])
    if containing[other] < MIN_CONTAINING_SHARE * labelled:
        return None
    now = SEPARATORS.get(separator, separator)
    fix = (
        f'if it separates labels, set corpus.label_separator to "{SEPARATORS[other]}" (now "{now}")'
        if separator
        else "if it separates labels, write them as a list in the files"
    )
    return (
        f"{single:,} of {labelled:,} texts have exactly one label, and {containing[other]:,} of these labels "
        f"contain {SEPARATORS[other]!r}, such as {examples[other]!r}; {fix}"
    )


def lookalike_warning(labels: pa.Array) -> str | None:
    """Return a warning if labels differ in blanks, invisible characters or outer brackets only.

    Most likely, they are the same: a label in brackets that is alone in its cell is read as a list.
    """
    unusual = labels.filter(pc.match_substring_regex(labels, rf"{UNUSUAL_BLANKS}|{IN_BRACKETS}")).to_pylist()
    bare = [label[1:-1] if re.fullmatch(IN_BRACKETS, label) else label for label in unusual]
    visible = ["".join(letter for letter in label if unicodedata.category(letter) != "Cf") for label in bare]
    plain = [" ".join(label.split()) for label in visible]
    is_label = pc.is_in(pa.array(plain, pa.string()), labels).to_pylist()
    first: dict[str, str] = {}
    alike = [
        (label, other)
        for label, name, known in zip(unusual, plain, is_label, strict=True)
        if (other := name if known else first.setdefault(name, label)) != label
    ]
    if not alike:
        return None
    (label, other), count = alike[0], f"{len(alike):,} labels differ" if len(alike) > 1 else "a label differs"
    return (
        f"{count} from another one in blanks, invisible characters or brackets only, such as {label!r} and {other!r}; "
        'if they are the same, write them alike in the files, and labels in brackets as lists: ["[x]"]'
    )


def overlap_warning(known_texts: dict[str, int], documents: dict[str, int]) -> str | None:
    """Return a warning if many validation or test texts are training texts: scores are then too good.

    Args:
        known_texts: by split, the number of documents whose text is also in train.
        documents: by split, the number of documents.
    """
    for split in ("test", "valid"):
        if known_texts[split] > MIN_KNOWN_TEXTS_SHARE * documents[split]:
            return (
                f"{known_texts[split]:,} of {documents[split]:,} texts of corpus.{split} are also in train, so scores "
                "will be too good; leave them out of one, or set corpus.drop_duplicates to true"
            )
    return None


def repeated_warning(split: str, repeated: int, documents: int) -> str | None:
    """Return a warning if many texts of a split are on several rows: each may have one of the labels of its text.

    Nothing fails, but the model learns from one label of a text that the others are wrong, or `corpus.drop_duplicates`
    drops the rows of the others.
    """
    if repeated <= MAX_REPEATED_SHARE * documents:
        return None
    return (
        f"{repeated:,} of {documents:,} {split} texts repeat another one of them; if each row has one label of a text, "
        "write a text once, with all of its labels"
    )


def unseen_warning(labels: Mapping[str, int]) -> str | None:
    """Return a warning if most labels of validation or test documents have no training document: none can be predicted.

    It is so where a cell of several labels is one label, or where files write labels differently, such as 3 and 3.0.
    `labels` has the numbers of pairs of a document and a label that `merge_labels` returns.
    """
    for split in ("test", "valid"):
        pairs, unseen = labels[f"pairs_{split}"], labels[f"unseen_pairs_{split}"]
        if unseen > MAX_UNSEEN_SHARE * pairs:
            return (
                f"{unseen:,} of {pairs:,} labels of the {split} texts are of no training text, so they can never be "
                "predicted; see in the corpus's report whether labels are separated, and written alike in all files"
            )
    return None


def segmentation_warning(paths: Sequence[str]) -> str | None:
    """Return a warning if phrases in scripts without blanks between words are a considerable share of the texts.

    Nothing fails, but nearly every phrase is another word, from which nothing can be learned.
    """
    characters = in_phrases = 0
    example = ""
    for path in paths[:: max(1, len(paths) // MAX_PHRASE_BLOCKS)]:
        block = StagedBlock(Path(path))
        words = block.table("words")["word"]
        counts = pc.count_substring_regex(words, UNSPACED).to_numpy()
        occurrences = np.bincount(block.array("word"), minlength=len(words))
        is_phrase = counts >= MIN_PHRASE
        characters += int((occurrences * np.maximum(counts, 1)).sum())
        in_phrases += int((occurrences * counts)[is_phrase].sum())
        if is_phrase.any() and not example:
            example = words[int(np.flatnonzero(is_phrase)[0])].as_py()
    if in_phrases <= MIN_PHRASE_SHARE * characters:
        return None
    return (
        f"{in_phrases / characters:.0%} of the training texts is written without blanks between words, and a phrase "
        f"such as {example[:20]!r} becomes one word; to make each of its characters a word, set corpus.segmentation to "
        "characters"
    )
