"""Which documents go to which split."""

import numpy as np
from corpus.preparing import Prepare, ids, many, rows
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.corpus.preparation.split_assignment import TRAIN, VALID, assign_splits
from axml_ray.corpus.preparation.staging import DOCUMENT_FACTS
from axml_ray.settings import SPLITS, CorpusSettings


def test_validation_is_drawn_from_train(run: Prepare) -> None:
    one = run(train=many(100), test=many(4, "test"), valid_documents=10)
    drawn = ids(one, "valid")
    assert (len(drawn), one.documents("train"), one.documents("test")) == (10, 90, 4)
    assert not set(drawn) & set(ids(one, "train"))
    assert ids(run(train=many(100), test=many(4, "test"), valid_documents=10, directory="again"), "valid") == drawn
    # By the texts, not by their places: a fewer drawn are among the more.
    fewer = run(train=many(100), test=many(4, "test"), valid_documents=4, directory="fewer")
    assert set(ids(fewer, "valid")) < set(drawn)


def test_given_validation_is_left_alone(run: Prepare) -> None:
    corpus = run(train=many(20), valid=many(5, "valid"), test=many(4, "test"), valid_documents=2)
    assert [corpus.documents(split) for split in SPLITS] == [20, 5, 4]
    assert all(text.startswith("valid") for _, text in rows(corpus, "valid").values())


def test_subsets_are_drawn_by_the_texts(run: Prepare) -> None:
    settings = {"max_train_documents": 12}
    corpus = run(train=many(40), test=many(9, "test"), **settings)
    assert [corpus.documents(split) for split in SPLITS] == [12, 3, 9]
    longer = run(train=many(40), test=many(9, "test"), max_train_documents=20, directory="more")
    assert set(ids(corpus, "train")) < set(ids(longer, "train"))
    assert ids(corpus, "valid") == ids(longer, "valid")
    # What is left out counts nowhere: neither its words nor its labels.
    assert corpus.labels.counts[0] == 12
    words = {word for _, text in rows(corpus, "train").values() for word in text.split()}
    assert set(corpus.tokenizer.words[2:]) == words


def test_duplicates_are_dropped_and_the_test_copy_is_kept(run: Prepare) -> None:
    train = [("same", ["a"]), ("x", ["a"]), ("same", ["b"]), ("x", ["b"]), ("y", ["a"]), ("in valid", ["a"])]
    valid = [("v", ["a"]), ("in valid", ["a"]), ("v", ["b"])]
    test = [("same", ["a"]), ("t", ["a"]), ("t", ["b"])]
    corpus = run(train=train, valid=valid, test=test, drop_duplicates=True)
    assert ids(corpus, "train") == ["d1", "d4"]
    assert ids(corpus, "valid") == ["d100000", "d100001"]
    assert ids(corpus, "test") == ["d200000", "d200001"]
    assert corpus.manifest["counts"]["duplicates"] == 6
    assert run(train=train, valid=valid, test=test, directory="all").documents("train") == 6


def test_texts_without_labels_replace_and_are_drawn_for_no_others(run: Prepare) -> None:
    labelled = many(40)
    pool = [*((text, []) for text, _ in labelled[:30]), *(("unlabelled", []) for _ in range(100))]
    corpus = run(train=[*pool, *labelled], test=[*pool, *many(4, "test")], drop_duplicates=True, valid_documents=4)
    assert [corpus.documents(split) for split in SPLITS] == [36, 4, 4]
    left_out = corpus.manifest["summary"]["left_out"]
    assert left_out["duplicates"] == 0 and left_out["without_label"] == {"train": 130, "valid": 0, "test": 130}
    few = run(train=[*pool, *labelled], test=many(4, "test"), max_train_documents=12, directory="few")
    assert [few.documents(split) for split in SPLITS] == [12, 3, 4]


@given(st.lists(st.integers(0, 30), min_size=20, max_size=200), st.integers(1, 20))
def test_validation_does_not_divide_equal_texts(texts: list[int], wanted: int) -> None:
    facts = np.zeros(len(texts), dtype=DOCUMENT_FACTS)
    facts["low"] = texts
    facts["draw"] = np.random.default_rng(0).permutation(31)[texts]  # equal texts have equal draws
    split = np.zeros(len(texts), dtype=np.int8)
    settings = CorpusSettings(source="installed_packages", test_share=0, valid_documents=wanted)
    assign_splits(settings, split, facts, str)
    in_valid, in_train = (set(facts["low"][split == number].tolist()) for number in (VALID, TRAIN))
    first = int(facts["low"][facts["draw"].argmin()])
    # Only where the text that is drawn first has more copies than are wanted, it is in both.
    assert in_valid and in_valid & in_train <= {first} and (not in_valid & in_train or in_valid == {first})
    assert 1 <= (split == VALID).sum() <= min(wanted, max(1, len(texts) // 10))
