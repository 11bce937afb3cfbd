import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus.preparing import BAD, CUT, UNLABELLED, Prepare, error_of, ids, leftovers, lines, many, mixed, rows, written
from label_centroids import label_centroids

import axml_ray.corpus.readers.sources
from axml_ray.corpus.preparation.passes import count_cooccurrences
from axml_ray.corpus.readers.sources import installed_package_readers
from axml_ray.corpus.text.cooccurrence import factorise
from axml_ray.corpus.text.tokenizer import LONGEST_WORD, split_words
from axml_ray.corpus.text.word_vectors import fill_unknown, random_vectors
from axml_ray.settings import SPLITS

# What comes out


def test_texts_become_integers(run: Prepare) -> None:
    corpus = run(
        train=[("A cat /SEP/ sat", ["pets", "cats"]), ("a DOG", ["pets"]), ("a", ["pets", "rare"])],
        valid=[("dog bird", ["pets", "valid only"])],
        test=[("", ["cats", "test only", "cats"])],
        max_tokens=3,
    )
    assert corpus.tokenizer.words == ["<padding>", "<unknown>", "a", "/SEP/", "cat", "dog"]
    assert corpus.labels.labels == ("pets", "cats", "rare", "test only", "valid only")
    assert corpus.labels.names == corpus.labels.labels
    assert corpus.labels.counts.tolist() == [3, 1, 1, 0, 0]
    assert corpus.trained == corpus.labels.trained == 3
    expected = {
        "train": ([[2, 4, 3], [2, 5], [2]], [[0, 1], [0], [0, 2]]),
        "valid": ([[5, 1]], [[0, 4]]),
        "test": ([[1]], [[1, 3]]),
    }
    for split, (tokens, labels) in expected.items():
        found = corpus.split(split)
        assert [found.tokens[i].tolist() for i in range(len(found))] == tokens
        assert [found.labels[i].tolist() for i in range(len(found))] == labels
        assert corpus.documents(split) == len(tokens)
        types = {
            field.name: str(field.type) for field in corpus.table(split, ["id", "tokens", "labels", "text"]).schema
        }
        assert types["id"] == types["text"] == "string"
        assert types["tokens"].startswith("list<") and types["tokens"].endswith("int32>")
        assert types["labels"].startswith("list<") and types["labels"].endswith("int32>")
    assert rows(corpus, "train")["d0"] == (["pets", "cats"], "A cat /SEP/ sat")
    np.testing.assert_array_equal(corpus.word_vectors(), random_vectors(6, 4, seed=0))
    assert corpus.manifest["counts"] == {
        "documents": {"train": 3, "valid": 1, "test": 1},
        "labels": 5,
        "trained_labels": 3,
        "words": 6,
        "rejected": 0,
        "duplicates": 0,
    }
    assert (corpus.directory / "rejected.jsonl").read_bytes() == b""
    assert not (corpus.directory / "stage").exists()


def test_plain_and_gzip_files_in_a_directory(run: Prepare, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    records = many(30)
    (folder / "1.jsonl").write_bytes(lines(records[:10]))
    (folder / "2.jsonl.gz").write_bytes(gzip.compress(lines(records[10:20], 10)))
    (folder / "3.jsonl").write_bytes(b"")
    (folder / "4.jsonl").write_bytes(lines(records[20:], 20))
    corpus = run(train=(folder,), test=many(4, "test"))
    assert sum(map(corpus.documents, ("train", "valid"))) == 30
    assert {*ids(corpus, "train"), *ids(corpus, "valid")} == {f"d{i}" for i in range(30)}
    order = [int(name[1:]) for name in ids(corpus, "train")]
    assert order == sorted(order)


def test_vectors_and_features_are_those_of_the_training_documents(run: Prepare, tmp_path: Path) -> None:
    corpus = run(train=many(60), test=many(4, "test"), word_vectors="train")
    train, words = corpus.split("train"), len(corpus.tokenizer)
    count_cooccurrences(0, [tmp_path / "counts.npz"], corpus.files("train"), words)
    known, learned = factorise([tmp_path / "counts.npz"], 4, seed=0)
    vectors, coverage = fill_unknown(known, learned, words, seed=0)
    assert corpus.word_vectors().tobytes() == vectors.tobytes()
    assert corpus.manifest["word_vector_coverage"] == coverage > 0.9
    assert corpus.manifest["word_vector_dimension"] == 4
    centroids = label_centroids(train.tokens, train.labels, len(corpus.tokenizer), corpus.trained)
    assert abs(corpus.label_features() - centroids).max() == 0
    assert corpus.label_features().dtype == np.float32


def test_vectors_from_a_file(run: Prepare, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.full((1, 6), 0.5, dtype=np.float32))
    (tmp_path / "vocab.txt").write_text("text\n")
    corpus = run(train=many(20), test=many(4, "test"), word_vectors=str(tmp_path / "v.npy"))
    vectors = corpus.word_vectors()
    assert vectors.shape == (len(corpus.tokenizer), 6)
    assert (vectors[corpus.tokenizer.words.index("text")] == 0.5).all()
    assert corpus.manifest["word_vector_dimension"] == 6
    assert 0 < corpus.manifest["word_vector_coverage"] < 0.1


def test_readable_names(run: Prepare, tmp_path: Path) -> None:
    (tmp_path / "names.tsv").write_text("l0\tLabel nought\nunused\tx\nl2\tLabel two\n<l3>\tLabel three\n")
    corpus = run(train=many(20), test=many(4, "test"), label_names=tmp_path / "names.tsv")
    shown = dict(zip(corpus.labels.labels, corpus.labels.names, strict=True))
    assert shown == {"all": "all", "l0": "Label nought", "l1": "l1", "l2": "Label two", "l3": "Label three"}
    (tmp_path / "names.tsv").write_text("label 0\tLabel nought\nlabel 1\tLabel one\nl2\tLabel two\n")
    said = error_of(run, train=many(20), test=many(4, "test"), label_names=tmp_path / "names.tsv")
    assert "1 of 5 labels" in said and "'label 1'" in said and "'all'" in said


# Rare and unseen


def test_rare_labels_are_dropped_and_what_is_left_without(run: Prepare) -> None:
    train = [("a", ["twice", "rare"]), ("b", ["rare too"]), ("c", []), ("d", ["often"]), ("e", ["often"])]
    test = [("f", ["twice", "often"]), ("g", ["test only"])]
    corpus = run(train=train, valid=[("h", ["often"])], test=test, min_label_count=2)
    # Those of test documents must not decide which labels are learned: "twice" has one training document.
    assert corpus.labels.labels == ("often", "test only")
    assert corpus.labels.counts.tolist() == [2, 0]
    assert rows(corpus, "train") == {"d3": (["often"], "d"), "d4": (["often"], "e")}
    assert rows(corpus, "test") == {"d200000": (["often"], "f"), "d200001": (["test only"], "g")}
    assert corpus.manifest["counts"]["documents"] == {"train": 2, "valid": 1, "test": 2}
    assert corpus.tokenizer.words[2:] == ["d", "e"]


def test_words_are_counted_in_what_is_left(run: Prepare) -> None:
    train = [*many(12), *(("text of w1 ghost", []) for _ in range(200))]
    corpus = run(train=train, test=many(4, "test"), min_document_frequency=2)
    assert "ghost" not in corpus.tokenizer.words and corpus.documents("train") == 11
    kept = corpus.split("train")
    expected = label_centroids(kept.tokens, kept.labels, len(corpus.tokenizer), corpus.trained)
    assert abs(corpus.label_features() - expected).max() == 0 and corpus.label_features().data.min() > 0


def test_labels_unseen_in_train_come_last_with_count_nought(run: Prepare) -> None:
    corpus = run(train=[("a", ["z"])], valid=[("b", ["y"])], test=[("c", ["x", "z"])])
    assert corpus.labels.labels == ("z", "x", "y")
    assert corpus.labels.counts.tolist() == [1, 0, 0]
    assert (corpus.trained, len(corpus.labels)) == (1, 3)
    assert corpus.label_features().shape[0] == 1
    assert corpus.split("test").labels.values.tolist() == [0, 1]


def test_rare_words_are_unknown(run: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("axml_ray.corpus.preparation.merging.VOCABULARY_SIZE", 9)
    corpus = run(train=many(40), test=many(4, "test"), min_document_frequency=5)
    assert len(corpus.tokenizer) == 9
    assert "test" not in corpus.tokenizer.words


def test_rare_words_in_pieces(run: Prepare) -> None:
    long = "w" * (LONGEST_WORD + 1)
    train = [(f"wasser werk {long}", ["a"]), (f"wasser werk é {long}", ["a"]), ("wasserwerk ja", ["b"])]
    given = {"min_document_frequency": 2, "subwords": True, "max_tokens": 4}
    test = [("Werkwasser jawasserq wasserja", ["a"]), ("jé aj werk", ["b"]), (f"{long} ja", ["b"])]
    corpus = run(train=train, valid=[("w", ["a"])], test=test, **given)
    words = corpus.tokenizer.words
    assert words[2:4] == ["wasser", "werk"]
    assert words[4:] == sorted(set("wasserwerkjaé"))
    rows = corpus.split("test").tokens
    assert [[words[i] for i in rows[row]] for row in range(3)] == [
        ["werk", "wasser", "<unknown>", "wasser"],  # no training text holds a q
        ["j", "é", "a", "j"],
        ["<unknown>", "j", "a"],
    ]
    served = corpus.tokenizer.encode([text for text, _ in test], 4)
    assert served.values.tolist() == rows.values.tolist() and served.offsets.tolist() == rows.offsets.tolist()
    # Pieces weigh as words do: by the documents that they are in.
    train_split = corpus.split("train")
    expected = label_centroids(train_split.tokens, train_split.labels, len(words), corpus.trained).toarray()
    np.testing.assert_allclose(corpus.label_features().toarray(), expected, rtol=1e-6)


# Installed packages


def test_installed_packages(run: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    for package in ("alpha", "beta"):
        (site / package).mkdir(parents=True)
        functions = [
            f'def f{i}(x, y{i % 3}):\n    """{package} {i} {" ".join(f"word{(i + j) % 40}" for j in range(30))}."""\n'
            for i in range(40)
        ]
        (site / package / "core.py").write_text("\n".join(functions))
    monkeypatch.setattr(
        axml_ray.corpus.readers.sources, "installed_package_readers", lambda: installed_package_readers(site)
    )
    settings = {"source": "installed_packages", "train": (), "test": ()}
    corpus = run(**settings, test_share=0.25)
    sizes = [corpus.documents(split) for split in SPLITS]
    assert sum(sizes) == 80
    assert sizes[1] == 3
    assert 8 < sizes[2] < 32
    assert {"alpha", "beta", "alpha.core", "x", "y0", "y1", "y2"} <= set(corpus.labels.labels)
    more = run(**settings, test_share=0.5, directory="more")
    assert set(ids(corpus, "test")) < set(ids(more, "test"))

    # Byte code, which an import leaves, is no change; another source is.
    (site / "alpha" / "__pycache__").mkdir()
    (site / "alpha" / "__pycache__" / "core.pyc").write_bytes(b"x")
    stamp = (corpus.directory / "corpus.json").stat().st_mtime_ns
    assert run(**settings, test_share=0.25).fingerprint == corpus.fingerprint
    assert (corpus.directory / "corpus.json").stat().st_mtime_ns == stamp
    (site / "alpha" / "more.py").write_text("x = 1\n")
    run(**settings, test_share=0.25)
    assert (corpus.directory / "corpus.json").stat().st_mtime_ns != stamp


# Wrong input


def test_bad_records_are_listed(run: Prepare, tmp_path: Path) -> None:
    train = lines(many(18)) + BAD + b"{\n"
    corpus = run(train=train, test=many(4, "test"), max_rejected_share=0.1)
    assert corpus.manifest["counts"]["rejected"] == 2
    rejected = [json.loads(line) for line in (corpus.directory / "rejected.jsonl").read_text().splitlines()]
    assert [(record["file"], record["line"]) for record in rejected] == [
        (str(tmp_path / "train.jsonl"), 19),
        (str(tmp_path / "train.jsonl"), 20),
    ]
    assert rejected[0]["reason"] == "'labels' is a boolean, not a list of labels"
    assert corpus.documents("train") + corpus.documents("valid") == 18


def test_too_many_bad_records_are_an_error(run: Prepare, tmp_path: Path) -> None:
    train = lines(many(18)) + BAD + b"{\n"
    said = error_of(run, train=train, test=many(4, "test"))
    assert said.startswith(
        f"{tmp_path / 'train.jsonl'}:19: 'labels' is a boolean, not a list of labels (the first of 2 bad records); "
    )
    assert "corpus.max_rejected_share" in said
    assert leftovers(tmp_path) == []
    # 2 of 24 records
    assert "train.jsonl:19" in error_of(run, train=train, test=many(4, "test"), max_rejected_share=0.08)
    assert run(train=train, test=many(4, "test"), max_rejected_share=0.09)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.json", "a.parquet"])
def test_a_file_that_is_cut_short_is_an_error(run: Prepare, tmp_path: Path, name: str) -> None:
    """Whatever share of bad records is allowed: how many are lost is not known."""
    records = [{"text": f"text {i}", "labels": "a;b"} for i in range(2_000)]
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif name == "a.json":
        path.write_text(json.dumps(records))
    else:
        rows = lines([(record["text"], ["a", "b"]) for record in records])
        table = "text,labels\n" + "".join(f"{record['text']},a;b\n" for record in records)
        path.write_bytes(gzip.compress(table.encode() if "csv" in name else rows))
    assert run(train=(path,), test=many(9)).documents("test") == 9
    path.write_bytes(path.read_bytes()[:-300])
    assert error_of(run, train=(path,), test=many(9), max_rejected_share=0.9).startswith(f"{path}:")


def test_labels_that_no_training_text_has_are_warned_of(run: Prepare) -> None:
    """Pandas writes a column of integers with a missing value as floats, which CSV cannot tell from strings."""

    def warnings(written: str) -> list[str]:
        test = [(f"new text {i}", [written.format(i % 5)]) for i in range(9)]
        corpus = run(
            train=[(f"text {i}", [str(i % 5)]) for i in range(60)], test=test, directory=f"corpus{written[2:]}"
        )
        return list(corpus.manifest["summary"]["warnings"])

    assert warnings("{}") == []
    [warning] = warnings("{}.0")
    assert warning.startswith("9 of 9 labels of the test texts")


def test_missing_files_are_named(run: Prepare, tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    assert error_of(run, train=(missing,), test=many(4)) == f"corpus.train: no file matches '{missing}'"
    assert error_of(run, train=many(9), test=(tmp_path / "*.csv",)).startswith("corpus.test: no file matches")
    (tmp_path / "empty").mkdir()
    assert error_of(run, train=many(9), test=(tmp_path / "empty",)).startswith("corpus.test: no file to read")
    said = error_of(run, train=many(9), test=many(4), word_vectors=str(tmp_path / "v.npy"))
    assert said.startswith(f"corpus.word_vectors: {tmp_path / 'v.npy'}: ")
    said = error_of(run, train=many(9), test=many(4), label_names=tmp_path / "n.tsv")
    assert said.startswith(f"corpus.label_names: {tmp_path / 'n.tsv'} cannot be read")


def test_a_file_that_fails_while_it_is_read_is_named(run: Prepare) -> None:
    unreadable = Path("/proc/self/mem")
    if not unreadable.exists():
        pytest.skip("no file at hand that opens and cannot be read")
    said = error_of(run, train=(unreadable,), test=many(4))
    assert said == "corpus.train: /proc/self/mem cannot be read: Input/output error"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"train": b"", "test": many(4)}, "corpus.train (…/train.jsonl): holds no documents"),
        ({"train": many(9), "test": b"\n\n"}, "corpus.test (…/test.jsonl): holds no documents"),
        ({"train": many(9), "test": many(4), "valid": b""}, "corpus.valid (…/valid.jsonl): holds no documents"),
        ({"train": b"", "test": b""}, "corpus.train (…/train.jsonl): holds no documents"),
        (
            {"train": UNLABELLED, "test": UNLABELLED},
            "corpus.train (…/train.jsonl): no document has a label; every record's `labels` is empty",
        ),
        (
            {"train": UNLABELLED, "test": many(4)},
            "corpus.train (…/train.jsonl): no training document has a label",
        ),
        (
            {"train": many(9), "test": UNLABELLED},
            "corpus.test (…/test.jsonl): no document with a label is left in this split",
        ),
        (
            {"train": many(9), "test": many(4), "min_label_count": 50},
            "corpus.min_label_count is 50: no label occurs so often in train",
        ),
        (
            {"train": many(1), "test": many(4)},
            "corpus.train (…/train.jsonl): holds 1 documents, too few to draw validation documents from; give more, or "
            "corpus.valid",
        ),
    ],
)
def test_a_source_without_what_is_needed(run: Prepare, tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    assert error_of(run, **settings) == expected.replace("…", str(tmp_path))
    assert leftovers(tmp_path) == []


# The summary


def test_each_record_is_in_the_summary_once(run: Prepare) -> None:
    train = lines(mixed(100, "train")) + BAD + b"{\n"
    corpus = run(train=train, test=mixed(30, "test"), max_rejected_share=0.1, max_train_documents=20, **CUT)
    summary = corpus.manifest["summary"]
    left_out = summary["left_out"]
    assert summary["records"] == 132
    assert summary["rejected"] == {"'labels' is a boolean, not a list of labels": 1, "not JSON": 1}
    assert summary["documents"] == {split: corpus.documents(split) for split in SPLITS}
    kept = sum(summary["documents"].values())
    out = left_out["duplicates"] + left_out["not_drawn"] + sum(left_out["without_label"].values())
    assert kept + out + sum(summary["rejected"].values()) == 132
    assert left_out["duplicates"] == corpus.manifest["counts"]["duplicates"] > 0
    assert left_out["not_drawn"] > 0
    assert sum(summary["duplicates"]["within"].values()) + summary["duplicates"]["across_splits"] > 0
    for split in SPLITS:
        found = corpus.split(split)
        assert summary["words"][split] == len(found.tokens.values)
        assert summary["label_assignments"][split] == len(found.labels.values)
        assert summary["empty_texts"][split] == sum(text == "" for _, text in rows(corpus, split).values())
        longer = [text for _, text in rows(corpus, split).values() if len(split_words(text)) > 8]
        assert summary["cut_texts"][split] == len(longer)


# Label features


def test_the_strongest_terms_are_kept(run: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"train": many(60), "test": many(4, "test")}
    whole = run(**settings).label_features()
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.MANY_LABELS", 1)
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.MAX_TERMS", 4)
    cut = run(**settings, directory="cut").label_features()
    for label in range(whole.shape[0]):
        row, kept = whole[label].toarray()[0], cut[label].toarray()[0]
        assert np.count_nonzero(kept) == min(4, np.count_nonzero(row))
        strongest = np.sort(row)[::-1][:4]
        np.testing.assert_allclose(np.sort(kept)[::-1][:4], strongest / np.linalg.norm(strongest), rtol=1e-6)
        assert (kept[kept > 0] * np.linalg.norm(strongest) <= row[kept > 0] * (1 + 1e-6)).all()


def test_long_texts_are_written_in_row_groups(run: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which do not depend on the blocks of the input, and lose nothing."""
    monkeypatch.setattr("axml_ray.corpus.preparation.passes.ROW_GROUP_BYTES", 100_000)
    records = [(f"{i} some words of a text, " * 1_000, ["all", f"l{i % 3}"]) for i in range(20)]
    corpus, other = (
        run(train=records, test_share=0, max_tokens=50, block_bytes=size, directory=f"by {size}")
        for size in (1 << 20, 100_000)
    )
    assert written(corpus) == written(other)
    [file] = corpus.files("train")
    metadata = pq.read_metadata(file)
    assert metadata.num_row_groups > 3
    assert all(metadata.row_group(i).num_rows <= 6 for i in range(metadata.num_row_groups))
    stored = rows(corpus, "train")
    assert [stored[f"d{i}"][1] for i in range(20) if f"d{i}" in stored] == [
        text for i, (text, _) in enumerate(records) if f"d{i}" in stored
    ]
    assert corpus.split("train").tokens.lengths.tolist() == [50] * 18
    assert corpus.manifest["summary"]["cut_texts"]["train"] == 18


def test_texts_that_subwords_make_longer_are_counted_as_cut(run: Prepare) -> None:
    train = [(f"word{i % 3} unknown{i}x", ["a"]) for i in range(60)]
    corpus = run(train=train, test=[("word1 word2", ["a"])], subwords=True, min_document_frequency=9, max_tokens=3)
    pieces = corpus.tokenizer.encode([text for _, text in rows(corpus, "train").values()], 99).lengths
    cut = corpus.manifest["summary"]["cut_texts"]
    assert cut["train"] == (pieces > 3).sum() > 0 and cut["test"] == 0


def test_a_title_makes_no_word_of_an_empty_text(run: Prepare, tmp_path: Path) -> None:
    records = [{"title": "", "text": "a word" if i % 2 else "…", "labels": ["a"]} for i in range(40)]
    test = write_json_lines(tmp_path / "test.jsonl", [{"title": "a", "text": "word", "labels": ["a"]}])
    train = write_json_lines(tmp_path / "train.jsonl", records)
    corpus = run(train=(train,), test=(test,), title_field="title")
    assert sum(corpus.manifest["summary"]["empty_texts"].values()) == 20
    write_json_lines(train, [record | {"text": "…"} for record in records])
    assert "no text has a word" in error_of(run, train=(train,), test=(test,), title_field="title")


def write_json_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_chinese_by_characters(run: Prepare) -> None:
    train = [(f"机器学习 {i}", ["a"]) for i in range(9)]
    corpus = run(train=train, test=[("学习机", ["a"])], segmentation="characters")
    assert corpus.tokenizer.words[2:6] == sorted("机器学习")
    (row,) = corpus.split("test").tokens.padded().tolist()
    assert [corpus.tokenizer.words[i] for i in row] == ["学", "习", "机"]
    assert corpus.tokenizer.encode(["学习机"], 9)[0].tolist() == row


def test_tables_and_names_by_number(run: Prepare, tmp_path: Path) -> None:
    data = pa.table({"title": ["t"] * 30, "body": [f"b{i}" for i in range(30)], "tags": [[i % 3] for i in range(30)]})
    for name in ("a.parquet", "test/b.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(data, tmp_path / name, row_group_size=7)
    (tmp_path / "names.txt").write_text("nought\none\ntwo\n")
    corpus = run(
        train=(tmp_path / "a.parquet",),
        test=(f"{tmp_path.as_uri()}/test/*.parquet",),
        title_field="title",
        text_field="body",
        labels_field="tags",
        label_names=tmp_path / "names.txt",
        block_bytes=1,
    )
    assert dict(zip(corpus.labels.labels, corpus.labels.names, strict=True)) == {"0": "nought", "1": "one", "2": "two"}
    assert corpus.documents("train") == 27
    assert corpus.manifest["settings"]["test"] == [f"{tmp_path.as_uri()}/test/*.parquet"]
    assert next(iter(rows(corpus, "test").values())) == (["0"], "t /SEP/ b0")
