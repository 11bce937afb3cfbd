"""Checks that the ids of documents are distinct, so that predictions can be joined and runs be compared."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.preparation.input_staging import StagedInput, reader_number
from axml_ray.corpus.preparation.split_assignment import DROPPED
from axml_ray.corpus.records.records import Document
from axml_ray.settings import SPLITS


def check_ids(staged: StagedInput, given: Sequence[int]) -> None:
    """Check that no two documents that were given for the same split, and are kept, have the same id.

    Hashes of the ids are compared; the files are read again only to name the lines of a repeated one.

    Args:
        staged: the input, after documents were assigned to splits.
        given: the split for which the documents of each block were given.

    Raises:
        SettingsError: an id is repeated.
    """
    for split, name in enumerate(SPLITS):
        blocks = [i for i, each in enumerate(given) if each == split]
        if not blocks:
            continue
        starts = np.cumsum([0, *(len(staged.splits[i]) for i in blocks)])
        hashes = np.concatenate([staged.facts[i]["id"] for i in blocks])
        kept = np.flatnonzero(np.concatenate([staged.splits[i] for i in blocks]) != DROPPED)
        order = kept[np.argsort(hashes[kept], kind="stable")]
        repeated = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
        for place in repeated[np.argsort(order[repeated])].tolist():  # the first in the order of the input
            found = []
            for document in order[place - 1 : place + 1].tolist():
                number = int(np.searchsorted(starts, document, side="right")) - 1
                found.append(_read_again(staged, blocks[number], document - int(starts[number])))
            first, second = found
            if first.id == second.id:  # else only the hashes are equal
                raise SettingsError(
                    f"corpus.{name}: {first.file}:{first.line} and {second.file}:{second.line} have the same id, "
                    f"{first.id!r}; give each document its own, or set corpus.id_field to a field that no record has, "
                    "so that file and line are the id"
                )


def _read_again(staged: StagedInput, block: int, row: int) -> Document:
    """Return a document of a staged block from its source, with its file and line."""
    reader = reader_number(staged.paths[block])
    before = sum(len(staged.splits[i]) for i in range(block) if reader_number(staged.paths[i]) == reader)
    documents = (record for record in staged.readers[reader].read() if isinstance(record, Document))
    return next(islice(documents, before + row, None))
