"""Random names and texts, and the pairs of a text and a label whose name it contains, by their definition."""

import numpy as np
from hypothesis import strategies as st

from axml_ray.core.ragged import Ragged
from axml_ray.members.name_trie import LEAD_WORDS, Pairs, Trie

TRAINED = 6
STEMS = np.array([0, 1, 2, 2, 3, 4], np.int32)  # words 2 and 3 are two forms of one
Names = list[tuple[int, list[int]]]
"""Labels, each with the words of a name."""
PairFeatures = dict[tuple[int, int], tuple[bool, int, bool, bool, int]]
"""By document and label: lead, times, several, whole, words."""

texts_of = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=20), min_size=0, max_size=6)
names_of = st.lists(
    st.tuples(st.integers(0, TRAINED - 1), st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    max_size=7,
    unique_by=lambda name: (name[0], *STEMS[name[1]]),
)


def trie_of(names: Names) -> Trie:
    return Trie.of(
        Ragged.from_rows([name for _, name in names]), np.array([label for label, _ in names], np.int32), STEMS
    )


def as_features(pairs: Pairs) -> PairFeatures:
    columns = (pairs.lead, pairs.times, pairs.several, pairs.whole, pairs.words)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(zip(pairs.documents.tolist(), pairs.labels.tolist(), strict=True), values, strict=True))


def literal_pairs(names: Names, texts: list[list[int]]) -> PairFeatures:
    found: PairFeatures = {}
    for document, text in enumerate(texts):
        spans = {
            (start, start + len(name), label)
            for label, name in names
            for start in range(len(text) - len(name) + 1)
            if all(STEMS[one] == STEMS[other] for one, other in zip(name, text[start:], strict=False))
        }
        for label in {label for *_, label in spans}:
            own = sorted((start, end) for start, end, whose in spans if whose == label)
            whole = any(
                not any(s <= start and end <= e and (s, e) != (start, end) for s, e, _ in spans) for start, end in own
            )
            lead, several = own[0][0] < LEAD_WORDS, any(end - start > 1 for start, end in own)
            found[document, label] = (lead, len(own), several, whole, len(text))
    return found
