import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import axml_ray.corpus.sources
from axml_ray.corpus.label_features import label_centroids
from axml_ray.corpus.passes import FILE_DOCUMENTS
from axml_ray.corpus.prepare import prepare
from axml_ray.corpus.sources import installed_package_shards
from axml_ray.corpus.store import SPLITS, Corpus
from axml_ray.corpus.tokenizer import split_words
from axml_ray.corpus.word_vectors import random_vectors, train_vectors
from axml_ray.settings import CorpusSettings, SettingsError

pytestmark = pytest.mark.usefixtures("ray_cluster")

Record = tuple[str, Sequence[str]]


def lines(records: Sequence[Record], first: int = 0) -> bytes:
    """Records as JSON lines with ids `d0`, `d1`, …"""
    rows = [{"id": f"d{first + i}", "text": text, "labels": list(labels)} for i, (text, labels) in enumerate(records)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def many(count: int, tag: str = "train") -> list[Record]:
    return [(f"{tag} text {i} of w{i % 7} and w{i % 5}", [f"l{i % 4}", "all"]) for i in range(count)]


Prepare = Callable[..., Corpus]


@pytest.fixture
def run(tmp_path: Path) -> Prepare:
    """Prepare records, or files given by name, as `<tmp_path>/corpus`."""

    def run(train: Any = (), test: Any = (), valid: Any = (), directory: str = "corpus", **settings: Any) -> Corpus:
        paths: dict[str, tuple[Path, ...]] = {}
        for split, given in (("train", train), ("valid", valid), ("test", test)):
            if not isinstance(given, tuple):
                path = tmp_path / f"{split}.jsonl"
                content = given if isinstance(given, bytes) else lines(given, 100_000 * SPLITS.index(split))
                if not path.exists() or path.read_bytes() != content:
                    path.write_bytes(content)
                given = (path,)
            paths[split] = given
        settings = {"valid_documents": 3, "word_vectors": "random", "word_dimension": 4} | settings
        return prepare(CorpusSettings(**paths, **settings), tmp_path / directory)

    return run


def rows(corpus: Corpus, split: str) -> dict[str, tuple[list[str], str]]:
    """Labels and text of each document, by id."""
    table = corpus.table(split, ["id", "labels", "text"])
    named = [[corpus.labels.labels[i] for i in row] for row in table["labels"].to_pylist()]
    return dict(zip(table["id"].to_pylist(), zip(named, table["text"].to_pylist(), strict=True), strict=True))


def ids(corpus: Corpus, split: str) -> list[str]:
    return list(rows(corpus, split))


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if path.is_dir())


def content(corpus: Corpus) -> dict[str, bytes]:
    """All that was written; of the manifest, all but the time it took."""
    files = {
        path.relative_to(corpus.directory).as_posix(): path.read_bytes()
        for path in corpus.directory.rglob("*")
        if path.is_file()
    }
    manifest = json.loads(files.pop("corpus.json"))
    assert manifest.pop("seconds") > 0
    return {**files, "corpus.json": json.dumps(manifest).encode()}


def written(corpus: Corpus) -> dict[str, bytes]:
    """All files but the manifest, which says where the input lay."""
    return {name: found for name, found in content(corpus).items() if name != "corpus.json"}


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


def test_vectors_and_features_are_those_of_the_training_documents(run: Prepare) -> None:
    corpus = run(train=many(60), test=many(4, "test"), word_vectors="train", word_vector_epochs=2)
    train = corpus.split("train")
    vectors, coverage = train_vectors(train.tokens, len(corpus.tokenizer), 4, epochs=2, seed=0)
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
    (tmp_path / "names.tsv").write_text("l0\tLabel nought\nunused\tx\n")
    corpus = run(train=many(20), test=many(4, "test"), label_names=tmp_path / "names.tsv")
    shown = dict(zip(corpus.labels.labels, corpus.labels.names, strict=True))
    assert shown == {"all": "all", "l0": "Label nought", "l1": "l1", "l2": "l2", "l3": "l3"}


# Splits


def test_validation_is_drawn_from_train_by_the_seed(run: Prepare) -> None:
    one = run(train=many(40), test=many(4, "test"), valid_documents=10)
    drawn = ids(one, "valid")
    assert (len(drawn), one.documents("train"), one.documents("test")) == (10, 30, 4)
    assert not set(drawn) & set(ids(one, "train"))
    assert ids(run(train=many(40), test=many(4, "test"), valid_documents=10, directory="again"), "valid") == drawn
    other = run(train=many(40), test=many(4, "test"), valid_documents=10, seed=1, directory="other")
    assert ids(other, "valid") != drawn
    # By the texts, not by their places: a fewer drawn are among the more.
    fewer = run(train=many(40), test=many(4, "test"), valid_documents=4, directory="fewer")
    assert set(ids(fewer, "valid")) < set(drawn)


def test_given_validation_is_left_alone(run: Prepare) -> None:
    corpus = run(train=many(20), valid=many(5, "valid"), test=many(4, "test"), valid_documents=2)
    assert [corpus.documents(split) for split in SPLITS] == [20, 5, 4]
    assert all(text.startswith("valid") for _, text in rows(corpus, "valid").values())


def test_subsets_are_drawn_by_the_texts(run: Prepare) -> None:
    settings = {"max_train_documents": 12, "max_test_documents": 2}
    corpus = run(train=many(40), test=many(9, "test"), **settings)
    assert [corpus.documents(split) for split in SPLITS] == [12, 3, 2]
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


def test_rare_labels_are_dropped_and_what_is_left_without(run: Prepare) -> None:
    train = [("a", ["twice", "rare"]), ("b", ["rare too"]), ("c", []), ("d", ["often"]), ("e", ["often"])]
    test = [("f", ["twice", "often"]), ("g", ["test only"])]
    corpus = run(train=train, valid=[("h", ["often"])], test=test, min_label_count=2)
    assert corpus.labels.labels == ("often", "twice")
    assert corpus.labels.counts.tolist() == [2, 1]
    assert rows(corpus, "train") == {"d0": (["twice"], "a"), "d3": (["often"], "d"), "d4": (["often"], "e")}
    assert rows(corpus, "test") == {"d200000": (["often", "twice"], "f")}
    assert corpus.manifest["counts"]["documents"] == {"train": 3, "valid": 1, "test": 1}


def test_labels_unseen_in_train_come_last_with_count_nought(run: Prepare) -> None:
    corpus = run(train=[("a", ["z"])], valid=[("b", ["y"])], test=[("c", ["x", "z"])])
    assert corpus.labels.labels == ("z", "x", "y")
    assert corpus.labels.counts.tolist() == [1, 0, 0]
    assert (corpus.trained, len(corpus.labels)) == (1, 3)
    assert corpus.label_features().shape[0] == 1
    assert corpus.split("test").labels.values.tolist() == [0, 1]


def test_rare_words_are_unknown(run: Prepare) -> None:
    corpus = run(train=many(40), test=many(4, "test"), min_document_frequency=5, vocabulary_size=9)
    assert len(corpus.tokenizer) == 9
    assert "test" not in corpus.tokenizer.words


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
    monkeypatch.setattr(axml_ray.corpus.sources, "installed_package_shards", lambda: installed_package_shards(site))
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


# Again, and again


def test_prepared_twice_is_the_same_byte_for_byte(run: Prepare) -> None:
    settings = {"train": many(80), "test": many(20, "test"), "word_vectors": "train", "drop_duplicates": True}
    first, again = run(**settings), run(**settings, directory="again")
    assert content(first) == content(again)


def test_how_the_input_is_split_changes_nothing(run: Prepare, tmp_path: Path) -> None:
    records = many(FILE_DOCUMENTS + 100)
    whole = run(train=records, test=many(20, "test"), word_vectors="train", max_train_documents=2_000)
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, (begin, end) in enumerate([(0, 7), (7, 700), (700, FILE_DOCUMENTS + 100)]):
        (parts / f"{number}.jsonl").write_bytes(lines(records[begin:end], begin))
    split = run(
        train=(parts / "*.jsonl",),
        test=many(20, "test"),
        word_vectors="train",
        max_train_documents=2_000,
        directory="s",
    )
    assert written(whole) == written(split)
    assert whole.fingerprint == split.fingerprint


def test_what_is_up_to_date_is_left_alone(run: Prepare, tmp_path: Path) -> None:
    names = tmp_path / "names.tsv"
    names.write_text("l0\tone\n")
    np.save(tmp_path / "v.npy", np.ones((1, 4)))
    (tmp_path / "vocab.txt").write_text("text\n")
    settings: dict[str, Any] = {
        "train": many(20),
        "test": many(4, "test"),
        "label_names": names,
        "word_vectors": str(tmp_path / "v.npy"),
    }

    def stamps(corpus: Corpus) -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in corpus.directory.rglob("*")}

    first = run(**settings)
    before = stamps(first)
    assert stamps(run(**settings)) == before

    def changed() -> bool:
        nonlocal before
        after = stamps(run(**settings))
        was, before = before, after
        return was != after and was.keys() == after.keys()

    settings["max_tokens"] = 2
    assert changed()
    assert not changed()
    names.write_text("l0\ttwo\n")
    assert changed()
    np.save(tmp_path / "v.npy", np.full((1, 4), 2.0))
    assert changed()
    settings["train"] = many(21)
    assert changed()
    (first.directory / "tokenizer.json").write_text("{")
    run(**settings)
    assert len(Corpus.open(first.directory).tokenizer) > 2


# Wrong input


def error_of(run: Prepare, **settings: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        run(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


BAD = b'{"text": "t", "labels": "x"}\n'


def test_bad_records_are_listed(run: Prepare, tmp_path: Path) -> None:
    train = lines(many(18)) + BAD + b"{\n"
    corpus = run(train=train, test=many(4, "test"), max_rejected_share=0.1)
    assert corpus.manifest["counts"]["rejected"] == 2
    rejected = [json.loads(line) for line in (corpus.directory / "rejected.jsonl").read_text().splitlines()]
    assert [(record["file"], record["line"]) for record in rejected] == [
        (str(tmp_path / "train.jsonl"), 19),
        (str(tmp_path / "train.jsonl"), 20),
    ]
    assert rejected[0]["reason"] == "'labels' is a string, not a list"
    assert corpus.documents("train") + corpus.documents("valid") == 18


def test_too_many_bad_records_are_an_error(run: Prepare, tmp_path: Path) -> None:
    train = lines(many(18)) + BAD + b"{\n"
    said = error_of(run, train=train, test=many(4, "test"))
    assert said.startswith(f"{tmp_path / 'train.jsonl'}:19: 'labels' is a string, not a list (and 1 more); mend")
    assert "corpus.max_rejected_share" in said
    assert leftovers(tmp_path) == []
    # 2 of 24 records
    assert "train.jsonl:19" in error_of(run, train=train, test=many(4, "test"), max_rejected_share=0.08)
    assert run(train=train, test=many(4, "test"), max_rejected_share=0.09)


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
    assert said == "corpus: /proc/self/mem cannot be read: Input/output error"


UNLABELLED = [("a", []), ("b", []), ("c", []), ("d", [])]


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
            "corpus.min_label_count is 50: no label occurs so often",
        ),
        (
            {"train": many(3), "test": many(4)},
            "corpus.valid_documents is 3, but train holds 3 documents; take fewer, or give corpus.valid",
        ),
    ],
)
def test_a_source_without_what_is_needed(run: Prepare, tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    assert error_of(run, **settings) == expected.replace("…", str(tmp_path))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("stop", [RuntimeError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_and_keeps_the_older_corpus(
    run: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    def fail(*arguments: Any, **settings: Any) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr("axml_ray.corpus.word_vectors.save_vectors", fail)  # nearly the last that is written
        with pytest.raises(type(stop)):
            run(train=many(20), test=many(4, "test"))
        assert leftovers(tmp_path) == []
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    old = content(run(train=many(20), test=many(4, "test")))
    monkeypatch.setattr("axml_ray.corpus.word_vectors.save_vectors", fail)
    with pytest.raises(type(stop)):
        run(train=many(30), test=many(4, "test"))
    assert leftovers(tmp_path) == ["corpus"]
    assert content(Corpus.open(tmp_path / "corpus")) == old


def test_what_is_no_corpus_is_never_replaced(run: Prepare, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    said = error_of(run, train=many(9), test=many(4))
    assert said.startswith(f"{folder}: exists and is not a prepared corpus; choose another corpus.name")
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    (folder / "thesis.txt").unlink()
    assert run(train=many(9), test=many(4)).documents("test") == 4


# However the input is cut


def mixed(count: int, tag: str) -> list[Record]:
    """Texts of several scripts, some repeated, some empty, some longer than the cut."""
    return [
        (
            ["", f"{tag} w{i} naïve 日本 {i % 9}", f"Title /SEP/ w{i % 7} " * (1 + i % 5), "same text"][i % 4],
            [f"l{i % 13}", f"rare {i}" if i % 11 == 0 else "l1", *(["l2"] if i % 3 else [])],
        )
        for i in range(count)
    ]


CUT = {"max_tokens": 8, "min_label_count": 2, "min_document_frequency": 2, "max_terms": 3, "drop_duplicates": True}


@pytest.mark.parametrize("blocks", [2, 8])
def test_the_number_of_blocks_changes_nothing(run: Prepare, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    settings = {"train": mixed(400, "train"), "test": mixed(80, "test"), **CUT}
    whole = run(**settings)
    size = len(lines(settings["train"])) // blocks + 1
    # Not in this process, as so little would be.
    monkeypatch.setattr("axml_ray.corpus.prepare.SMALL_BYTES", 1)
    monkeypatch.setattr("axml_ray.corpus.prepare.label_features.RANGE_TERMS", 50)
    cut = run(**settings, block_bytes=size, directory="cut")
    assert written(whole) == written(cut)
    assert whole.manifest["summary"] == cut.manifest["summary"]
    assert whole.fingerprint == cut.fingerprint
    # No result depends on it.
    assert run(**settings, block_bytes=size + 1, directory="cut").manifest == cut.manifest


@pytest.mark.slow
def test_two_nodes_give_the_same(tmp_path: Path) -> None:
    for split, count in (("train", 3000), ("test", 200)):
        (tmp_path / f"{split}.jsonl").write_bytes(lines(mixed(count, split)))
    script = tmp_path / "prepare.py"
    script.write_text(TWO_NODES)
    for nodes in ("1", "2"):
        subprocess.run([sys.executable, script, str(tmp_path), nodes], check=True, timeout=240)
    one, two = (Corpus.open(tmp_path / nodes) for nodes in ("1", "2"))
    assert written(one) == written(two)
    assert one.fingerprint == two.fingerprint


TWO_NODES = """
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import axml_ray.corpus.prepare as prepare
from axml_ray.settings import CorpusSettings

folder, nodes = Path(sys.argv[1]), int(sys.argv[2])
cluster = Cluster()
for number in range(nodes):
    cluster.add_node(num_cpus=1, object_store_memory=128 << 20, include_dashboard=False)
ray.init(address=cluster.address, log_to_driver=False)
assert len([node for node in ray.nodes() if node["Alive"]]) == nodes
prepare.SMALL_BYTES = 1
prepare.prepare(
    CorpusSettings(
        train=(folder / "train.jsonl",), test=(folder / "test.jsonl",), block_bytes=40_000, valid_documents=20,
        word_vectors="random", word_dimension=4, max_tokens=8, max_terms=3, min_label_count=2,
    ),
    folder / sys.argv[2],
)
ray.shutdown()
cluster.shutdown()
"""


def test_each_record_is_in_the_summary_once(run: Prepare) -> None:
    train = lines(mixed(100, "train")) + BAD + b"{\n"
    corpus = run(train=train, test=mixed(30, "test"), max_rejected_share=0.1, max_train_documents=20, **CUT)
    summary = corpus.manifest["summary"]
    left_out = summary["left_out"]
    assert summary["records"] == 132
    assert summary["rejected"] == {"'labels' is a string, not a list": 1, "not JSON": 1}
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


def test_what_changed_is_said(run: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(train=many(20), test=many(4, "test"))
    caplog.set_level("INFO")

    def said(**settings: Any) -> str:
        caplog.clear()
        run(**({"train": many(20), "test": many(4, "test")} | settings))
        return caplog.messages[0]

    assert said() == f"prepare: {tmp_path / 'corpus'} is up to date"
    assert "made with other settings (corpus.max_tokens, corpus.seed); preparing" in said(max_tokens=9, seed=3)
    assert f"made from other inputs ({tmp_path / 'train.jsonl'})" in said(train=many(21), max_tokens=9, seed=3)


KILLED = """
import os, sys, time
from pathlib import Path

import axml_ray.corpus.prepare as prepare
from axml_ray.settings import CorpusSettings

prepare.connect = lambda: None
prepare.word_vectors.save_vectors = lambda *a: (print("here", flush=True), time.sleep(600))
folder = Path(sys.argv[1])
prepare.prepare(
    CorpusSettings(train=(folder / "train.jsonl",), test=(folder / "test.jsonl",), valid_documents=3,
                   word_vectors="random", word_dimension=4, seed=int(sys.argv[2])),
    folder / "corpus",
)
"""


def test_what_a_killed_preparation_left_is_removed(run: Prepare, tmp_path: Path) -> None:
    def hidden() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".corpus."))

    for split, count in (("train", 20), ("test", 4)):
        (tmp_path / f"{split}.jsonl").write_bytes(lines(many(count, split), 100_000 * SPLITS.index(split)))
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(tmp_path), "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    left = hidden()
    assert len(left) == 1
    assert not (tmp_path / "corpus").exists()
    # One that still runs is let be.
    run(train=many(20), test=many(4, "test"))
    assert hidden() == left
    process.kill()
    process.wait()
    run(train=many(20), test=many(4, "test"))
    assert hidden() == []


# Label features


def test_the_strongest_terms_are_kept(run: Prepare) -> None:
    settings = {"train": many(60), "test": many(4, "test")}
    whole, cut = run(**settings).label_features(), run(**settings, max_terms=4, directory="cut").label_features()
    for label in range(whole.shape[0]):
        row, kept = whole[label].toarray()[0], cut[label].toarray()[0]
        assert np.count_nonzero(kept) == min(4, np.count_nonzero(row))
        strongest = np.sort(row)[::-1][:4]
        np.testing.assert_allclose(np.sort(kept)[::-1][:4], strongest / np.linalg.norm(strongest), rtol=1e-6)
        assert (kept[kept > 0] * np.linalg.norm(strongest) <= row[kept > 0] * (1 + 1e-6)).all()


def test_label_features_from_a_file(run: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "features.svm"
    path.write_text("all\t1:3 7:4\nl1 2:1 # by hand\nunknown 9:1\n\n")
    corpus = run(train=many(20), test=many(4, "test"), label_features=path)
    found = dict(zip(corpus.labels.labels, corpus.label_features().toarray().tolist(), strict=True))
    assert corpus.label_features().dtype == np.float32
    np.testing.assert_allclose(found["all"], [0.6, 0, 0, 0, 0, 0, 0.8], rtol=1e-6)
    assert found["l1"] == [0, 1, 0, 0, 0, 0, 0]
    assert not any(found["l0"])
    for content, reason in [("all 1:x\n", ":1: expected feature:value"), ("none 1:1\n", "has none of the corpus' 5")]:
        path.write_text(content)
        assert reason in error_of(run, train=many(20), test=many(4, "test"), label_features=path)
    path.unlink()
    said = error_of(run, train=many(20), test=many(4, "test"), label_features=path)
    assert str(path) in said


def test_chinese_by_characters(run: Prepare) -> None:
    train = [(f"机器学习 {i}", ["a"]) for i in range(9)]
    corpus = run(train=train, test=[("学习机", ["a"])], segmentation="characters")
    assert corpus.tokenizer.words[2:6] == sorted("机器学习")
    (row,) = corpus.split("test").tokens.padded().tolist()
    assert [corpus.tokenizer.words[i] for i in row] == ["学", "习", "机"]
    assert corpus.tokenizer.encode(["学习机"], 9)[0].tolist() == row


def test_tables_and_names_by_number(run: Prepare, tmp_path: Path) -> None:
    data = pa.table({"title": ["t"] * 30, "body": [f"b{i}" for i in range(30)], "tags": [[i % 3] for i in range(30)]})
    pq.write_table(data, tmp_path / "a.parquet", row_group_size=7)
    (tmp_path / "names.txt").write_text("nought\none\ntwo\n")
    corpus = run(
        train=(tmp_path / "a.parquet",),
        test=(f"{tmp_path.as_uri()}/*.parquet",),
        title_field="title",
        text_field="body",
        labels_field="tags",
        label_names=tmp_path / "names.txt",
        block_bytes=1,
    )
    assert dict(zip(corpus.labels.labels, corpus.labels.names, strict=True)) == {"0": "nought", "1": "one", "2": "two"}
    assert corpus.documents("train") == 27
    assert corpus.manifest["settings"]["test"] == [f"{tmp_path.as_uri()}/*.parquet"]
    assert next(iter(rows(corpus, "test").values())) == (["0"], "t /SEP/ b0")


# The corpus page


class Page(HTMLParser):
    """Tags that are open, what they refer to, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text = ""
        self.shapes = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.shapes += tag in ("rect", "path")
        self.outside += [str(value) for key, value in attrs if key in ("src", "href", "xlink:href", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_the_corpus(run: Prepare) -> None:
    train = [("<script>alert(1)</script> & more", ["<b>bold</b>"]), *many(40)]
    corpus = run(train=train, test=many(4, "test"), valid=many(2, "valid"))
    source = (corpus.directory / "report" / "corpus.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(source)
    assert page.open == []
    assert page.outside == []
    assert "http" not in source
    assert "url(" not in source
    assert "prefers-color-scheme: dark" in source
    assert page.shapes > 5
    assert "<script>alert(1)</script> & more" in page.text
    assert "<b>bold</b>" in page.text
    assert "47 documents, 6 labels" in page.text
    for split in SPLITS:
        assert f"{corpus.documents(split)}" in page.text
