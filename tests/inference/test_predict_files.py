"""Run: pytest tests/inference/test_predict_files.py

Files through a bundle by Ray Data: the same tags as the Python API, an error row for each bad record, nothing twice.
"""

import json
import os
import tracemalloc
from pathlib import Path
from typing import get_args
from weakref import WeakSet

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv
from tiny_run import texts_of

from axml_ray import Tagger
from axml_ray.cli.predict import main
from axml_ray.core.errors import SettingsError
from axml_ray.core.lease import own
from axml_ray.core.ragged import Ragged
from axml_ray.core.storage import sha256
from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.readers.sources import Document, open_readers
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.bundle.manifest import MANIFEST
from axml_ray.inference.predict import predict_files as module
from axml_ray.inference.predict.predict_files import (
    DOCUMENTS,
    BundlePredictor,
    PredictionOptions,
    TextFile,
    predict_files,
)
from axml_ray.inference.predict.prediction_files import Format, read_errors, write_predictions
from axml_ray.inference.predict.shards import JOB, claim_directory, unfinished_shards
from axml_ray.runs.run import Run
from axml_ray.settings import CorpusSettings

BAD = ["not json", '{"no": "text"}', '{"text": 5}']


@pytest.fixture
def inputs(tiny_run, tmp_path):
    """Two files; bad records stand between good ones."""
    texts = [*texts_of(tiny_run, "train")[:90], "", "\0 ...", "key1 " * 2_000]
    lines = [json.dumps({"id": f"text-{number}", "text": text}) for number, text in enumerate(texts)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join([*lines[:40], *BAD, *lines[40:60]]))
    (tmp_path / "in" / "b.jsonl").write_text("\n".join(lines[60:]))
    return open_readers([tmp_path / "in"], CorpusSettings.model_construct(), labelled=False), texts


def rows_of(output: Path, form: str) -> list[dict]:
    rows = []
    for path in sorted(output.glob(f"part-*.{form}")):
        rows += pq.read_table(path).to_pylist() if form == "parquet" else map(json.loads, path.open())
    return rows


def test_formats_hold_the_same(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "labels": ["x;y", 'z"'], "names": ["X, Y", "Z\nz"], "scores": [0.5, 0.25],
         "probabilities": [0.75, 0.5], "error": None},
        {"id": "b", "labels": [], "names": [], "scores": [], "probabilities": [], "error": None},
        {"id": "c,1", "labels": [], "names": [], "scores": [], "probabilities": [], "error": "not JSON"},
    ]  # fmt: skip
    for form in get_args(Format):
        path = tmp_path / f"part-0.{form}"
        write_predictions(rows, path, form)
        assert list(read_errors(path, form)) == [("a", None), ("b", None), ("c,1", "not JSON")]
    for form in ("parquet", "jsonl"):
        assert rows_of(tmp_path, form) == rows
    table = csv.read_csv(tmp_path / "part-0.csv", parse_options=csv.ParseOptions(newlines_in_values=True))
    assert table.column_names == ["id", "rank", "label", "name", "score", "probability", "error"]
    assert [list(row.values()) for row in table.to_pylist()] == [
        ["a", 1, "x;y", "X, Y", 0.5, 0.75, ""],
        ["a", 2, 'z"', "Z\nz", 0.25, 0.5, ""],
        ["b", None, "", "", None, None, ""],
        ["c,1", None, "", "", None, None, "not JSON"],
    ]


def test_is_what_the_tagger_says(ray_cluster, inputs, bundle_directory, tmp_path):
    form, (found, texts) = "parquet", inputs
    tagger = Tagger.load(bundle_directory)
    threshold = tagger.threshold(count=1)
    wanted = PredictionOptions(form=form, top_k=3, threshold=threshold)
    result = predict_files(bundle_directory, found, tmp_path / "out", wanted, actors=1, cpus_per_actor=1)
    assert (result["documents"], result["errors"]) == (len(texts) + len(BAD), len(BAD))
    assert json.loads((tmp_path / "out" / "predictions.json").read_text()) == result
    rows = rows_of(tmp_path / "out", form)
    good = [row for row in rows if row["error"] is None]
    assert [row["id"] for row in good] == [f"text-{number}" for number in range(len(texts))]
    assert [row["labels"] for row in good[90:92]] == [[], []]  # without a word
    for row, tags in zip(good, tagger.tag(texts, top_k=3, threshold=threshold), strict=True):
        assert row["labels"] == [tag.label for tag in tags] and row["names"] == [tag.name for tag in tags]
        assert row["scores"] == pytest.approx([tag.score for tag in tags], rel=1e-4)
        assert row["probabilities"] == pytest.approx([tag.probability for tag in tags], abs=1e-3)
    bad = [row for row in rows if row["error"] is not None]
    assert [row["id"] for row in bad] == ["a.jsonl:41", "a.jsonl:42", "a.jsonl:43"]
    assert all(row["labels"] == row["scores"] == [] for row in bad)
    assert "not JSON" in bad[0]["error"] and "'text' is missing" in bad[1]["error"]
    # Started again, nothing is predicted anew; a block that is gone is.
    parts = sorted((tmp_path / "out").glob("part-*"))
    before = [path.stat().st_mtime_ns for path in parts]
    parts[0].unlink()
    (tmp_path / "out" / f".{parts[0].name}.cut").write_text("half")
    with own(tmp_path / "out"), pytest.raises(SettingsError, match=f"process {os.getpid()}"):
        predict_files(bundle_directory, found, tmp_path / "out", wanted)
    assert predict_files(bundle_directory, found, tmp_path / "out", wanted) == result
    after = [path.stat().st_mtime_ns for path in parts]
    assert after[0] > before[0] and after[1:] == before[1:]
    assert rows_of(tmp_path / "out", form) == rows
    assert not list((tmp_path / "out").glob(".*"))
    # The number format is decided once; another machine that goes on keeps it.
    job = json.loads((tmp_path / "out" / JOB).read_text())
    assert job["computed_in"] in ("float32", "bfloat16")
    for kept in ("float32", "bfloat16"):
        (tmp_path / "out" / JOB).write_text(json.dumps(job | {"computed_in": kept}))
        same = {name: value for name, value in job.items() if name != "computed_in"}
        assert claim_directory(tmp_path / "out", same, computed_in="auto")["computed_in"] == kept
    with pytest.raises(SettingsError, match=r"other top_k"):
        predict_files(bundle_directory, found, tmp_path / "out", wanted.model_copy(update={"top_k": 4}))
    read_otherwise = open_readers([tmp_path / "in"], CorpusSettings.model_construct(text_field="body"), labelled=False)
    with pytest.raises(SettingsError, match=r"other fields"):
        predict_files(bundle_directory, read_otherwise, tmp_path / "out", wanted)


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_table_without_the_column_is_no_job(bundle_directory, tmp_path, name):
    table = pa.table({"body": ["key1"] * 3})
    pq.write_table(table, tmp_path / name) if name.endswith("parquet") else csv.write_csv(table, tmp_path / name)
    found = open_readers([tmp_path / name], CorpusSettings.model_construct(), labelled=False)
    with pytest.raises(
        SettingsError, match=rf"--input: .*{name}: has no column 'text'; .* body.* --text-field .* --source"
    ):
        predict_files(bundle_directory, found, tmp_path / "out", PredictionOptions())
    assert not (tmp_path / "out").exists()


def test_json_lines_of_more_files_than_readers_at_once(ray_cluster, bundle_directory, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / "in" / f"{number:02d}.jsonl").write_text(json.dumps({"text": f"key{number}", "id": f"{number}"}))
    latin = tmp_path / "in" / os.fsdecode(b"M\xfcnchen.jsonl")
    latin.write_text("not JSON")
    (tmp_path / "in" / "a.jsonl").write_text("\n")
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "key1 ÿ", "id": "ÿ"}\n{"text": 1}\n')
    found = open_readers([tmp_path / "in"], CorpusSettings.model_construct(), labelled=False)
    result = predict_files(bundle_directory, found, tmp_path / "out", PredictionOptions(form="jsonl", top_k=2))
    assert (result["documents"], result["errors"], len(result["files"])) == (15, 2, 14)  # none of the empty file
    rows = {row["id"]: row for row in rows_of(tmp_path / "out", "jsonl")}
    assert set(map(str, range(12))) < rows.keys() and len(rows) == 15
    good, bad = rows["ÿ"], rows["b.jsonl:2"]
    [tags] = Tagger.load(bundle_directory).tag(["key1 ÿ"], top_k=2)
    assert (good["labels"], good["error"]) == ([tag.label for tag in tags], None)
    assert good["scores"] == pytest.approx([tag.score for tag in tags], rel=1e-4)
    assert "'text' is a number" in bad["error"]


class TestCommand:
    """`axml-ray predict` on the cluster of the tests."""

    @pytest.fixture(autouse=True)
    def _cluster(self, ray_cluster):
        pass

    def predict(self, bundle, source, output, *flags) -> list[dict]:
        words = ["--bundle", bundle, "--input", source, "--output", output, "--format", "jsonl", "--actors", 1, *flags]
        main.work(*main.parse(list(map(str, words))))
        return rows_of(output, "jsonl")

    def test_lines_of_text_are_texts(self, tiny_run, bundle_directory, tmp_path):
        texts = texts_of(tiny_run, "train")[:9]
        (tmp_path / "in").mkdir()
        for name, content in [("a.txt", texts), ("b", texts), ("c.txt", ["", ""])]:
            (tmp_path / "in" / name).write_text("\n".join(content))
        rows = self.predict(bundle_directory, tmp_path / "in" / "*", tmp_path / "out")
        assert [row["id"] for row in rows] == [f"{name}:{line}" for name in ("a.txt", "b") for line in range(1, 10)]
        tags = Tagger.load(bundle_directory).tag(texts)
        assert [row["labels"] for row in rows] == [[tag.label for tag in one] for one in tags] * 2

    def test_files_are_read_as_in_training_unless_flags_say_otherwise(self, tiny_run, tmp_path):
        fields = {"source": "csv", "csv_delimiter": ";", "text_field": "body", "id_field": "number"}
        corpus = tiny_run.settings.corpus.model_copy(update=fields)
        settings = tiny_run.settings.model_copy(update={"corpus": corpus})
        export_bundle(Run(settings, tiny_run.corpus), tmp_path / "bundle")
        (tmp_path / "a.txt").write_text("number;body\n7;key1, key2\n")
        [row] = self.predict(tmp_path / "bundle", tmp_path / "a.txt", tmp_path / "csv")
        assert (row["id"], row["error"], bool(row["labels"])) == ("7", None, True)
        rows = self.predict(tmp_path / "bundle", tmp_path / "a.txt", tmp_path / "plain", "--source", "plain_text")
        assert [row["id"] for row in rows] == ["a.txt:1", "a.txt:2"]
        with pytest.raises(SettingsError, match=r"other fields"):  # the same directory for another reading
            self.predict(tmp_path / "bundle", tmp_path / "a.txt", tmp_path / "csv", "--source", "plain_text")
        (tmp_path / "b.jsonl").write_text('{"body": "key1", "number": 8}\n')
        [row] = self.predict(tmp_path / "bundle", tmp_path / "b.jsonl", tmp_path / "json")
        assert (row["id"], row["error"]) == ("8", None)

    def test_nothing_that_can_be_read_leaves_no_output(self, bundle_directory, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"body": "key1"}\n{"body": "key2"}\n')
        for _ in range(2):  # started again, it is no other job
            with pytest.raises(SettingsError, match=r"^--input: .*a\.jsonl:1: 'text' is missing"):
                self.predict(bundle_directory, tmp_path / "a.jsonl", tmp_path / "out")
            assert not (tmp_path / "out").exists()

    def test_the_first_error_of_some_is_shown(self, bundle_directory, tmp_path, capsys):
        (tmp_path / "a.jsonl").write_text('{"text": "key1"}\n{"text": 1}\n{\n')
        assert len(self.predict(bundle_directory, tmp_path / "a.jsonl", tmp_path / "out")) == 3
        said = capsys.readouterr().out
        assert "3 texts, 2 of them" in said and "a.jsonl:2: 'text' is a number" in said


def test_a_directory_of_something_else(inputs, bundle_directory, tmp_path):
    with pytest.raises(SettingsError, match="exists and holds no predictions"):
        predict_files(bundle_directory, inputs[0], tmp_path, PredictionOptions())


@pytest.mark.parametrize("content", ["", "text,labels\n"])
def test_files_without_texts_are_refused_before_anything_is_written(bundle_directory, tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    readers = open_readers([tmp_path / "a.csv"], CorpusSettings.model_construct(), labelled=False)
    with pytest.raises(SettingsError, match=r"--input: .*a\.csv"):
        predict_files(bundle_directory, readers, tmp_path / "out", PredictionOptions())
    assert not (tmp_path / "out").exists()


def test_a_job_goes_on_only_with_the_same_ids(ray_cluster, bundle_directory, tmp_path):
    """Of files with the same name, ids have the directory, too."""

    def predict(first: str) -> None:
        readers = open_readers([tmp_path / first, tmp_path / "b"], CorpusSettings.model_construct(), labelled=False)
        predict_files(bundle_directory, readers, tmp_path / "out", PredictionOptions(form="jsonl"), actors=1)

    for directory in "ab":
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "t.jsonl").write_text('{"text": "key1"}')
    predict("a")
    assert [row["id"] for row in rows_of(tmp_path / "out", "jsonl")] == ["a/t.jsonl:1", "b/t.jsonl:1"]
    (tmp_path / "a").rename(tmp_path / "c")
    with pytest.raises(SettingsError, match="predictions"):
        predict("c")


def test_a_predictor_refuses_another_bundle_than_its_job(bundle_directory):
    """It may open a bundle that was exported to the same place meanwhile."""
    options = PredictionOptions()
    BundlePredictor(bundle_directory, options, 1, checksum=sha256(bundle_directory / MANIFEST))
    with pytest.raises(SettingsError, match="replaced"):
        BundlePredictor(bundle_directory, options, 1, checksum="0" * 64)


class TestOneTextThatBreaks:
    """The tokenizer takes any text; should a part of the way down not, it costs one row."""

    @pytest.fixture
    def predictor(self, bundle_directory, tmp_path, monkeypatch):
        predictor = BundlePredictor(bundle_directory, PredictionOptions(form="jsonl"), 1)
        encode = predictor.tagger.codec.tokenizer.encode

        def fragile(texts, max_tokens) -> Ragged:
            if any("poison" in text for text in texts):
                raise RuntimeError("no such word")
            return encode(texts, max_tokens)

        monkeypatch.setattr(predictor.tagger.codec.tokenizer, "encode", fragile)
        return predictor

    def test_costs_one_row(self, predictor, tmp_path):
        columns = [list("abcd"), ["key1", "poison", None, "key2"], [None, None, "bad line", None]]
        predictor(pa.table(columns, schema=DOCUMENTS), tmp_path / "part-0.jsonl")
        rows = rows_of(tmp_path, "jsonl")
        assert [row["error"] for row in rows] == [None, "cannot be tagged: no such word", "bad line", None]
        assert [bool(row["labels"]) for row in rows] == [True, False, False, True]

    def test_all_of_them_is_a_failure(self, predictor, tmp_path):
        with pytest.raises(RuntimeError, match="no such word"):
            predictor(pa.table([["b"], ["poison"], [None]], schema=DOCUMENTS), tmp_path / "part-0.jsonl")
        assert not list(tmp_path.iterdir())


class TestAGpuThatFails:
    """Simulated by the errors that PyTorch raises; none of them is a fault of a text."""

    TEXTS = pa.table([[str(i) for i in range(64)], ["key1"] * 64, [None] * 64], schema=DOCUMENTS)

    def predict(self, bundle_directory, path, monkeypatch, fails) -> list[int]:
        """Return the sizes of the batches of a job whose batches raise what `fails` returns for them, if anything."""
        predictor = BundlePredictor(bundle_directory, PredictionOptions(form="jsonl"), 1)
        tag, sizes, in_memory, left = predictor.tagger.tag, [], WeakSet(), []

        def failing(texts, **options) -> list:
            sizes.append(len(texts))
            left.append(len(in_memory))
            tensor = torch.zeros(len(texts))
            in_memory.add(tensor)
            if error := fails(sizes):
                raise error
            return tag(texts, **options)

        monkeypatch.setattr(predictor.tagger, "tag", failing)
        predictor(self.TEXTS, path)
        assert not any(left)  # of a batch that failed, nothing is in memory any more
        return sizes

    def test_too_little_memory_for_a_batch_halves_it(self, bundle_directory, tmp_path, monkeypatch):
        full = torch.OutOfMemoryError("CUDA out of memory")
        sizes = self.predict(
            bundle_directory, tmp_path / "part-0.jsonl", monkeypatch, lambda sizes: full if sizes[-1] > 16 else None
        )
        assert sizes == [64, 32, 16, 16, 32, 16, 16]
        rows = rows_of(tmp_path, "jsonl")
        assert len(rows) == 64 and all(row["labels"] and row["error"] is None for row in rows)

    @pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
    def test_a_device_that_fails_on_the_way_fails_the_shard(self, bundle_directory, tmp_path, monkeypatch, error):
        def fails(sizes):
            return error("CUDA error") if len(sizes) > 9 else torch.OutOfMemoryError() if sizes[-1] > 1 else None

        with pytest.raises(error):
            self.predict(bundle_directory, tmp_path / "part-0.jsonl", monkeypatch, fails)
        assert not list(tmp_path.iterdir())


def test_shards_are_cut_by_rows(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 30)
    finished = frozenset({"part-00000-000001.parquet"})
    shards = [
        shard
        for number, reader in enumerate(inputs[0])
        for shard in unfinished_shards(number, TextFile(reader, 500), "parquet", finished)
    ]
    assert [shard["name"] for shard in shards] == [
        "part-00000-000000.parquet", "part-00000-000002.parquet", "part-00001-000000.parquet",
        "part-00001-000001.parquet"]  # fmt: skip
    assert [len(pa.ipc.open_stream(shard["documents"]).read_all()) for shard in shards] == [30, 3, 30, 3]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow", "csv"])
@pytest.mark.parametrize(("text", "blocks"), [("a megabyte of words, ", 1), ("withoutblanks", 6)])
def test_long_texts_take_memory_for_few_of_them(tmp_path, monkeypatch, form, text, blocks):
    """Of 12 MB of texts, a block holds the words that are read, or its limit of bytes."""
    table = pa.table({"text": [f"{i} " + text * (250_000 // len(text)) for i in range(48)]})
    path = tmp_path / f"texts.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif form == "parquet":
        pq.write_table(table, path)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=4)
    else:
        csv.write_csv(table, path)
    del table
    monkeypatch.setattr("axml_ray.corpus.readers.tables.BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(module, "SHARD_CHARACTERS", 2 << 20)
    [reader] = open_readers([path], CorpusSettings.model_construct(), labelled=False)
    tracemalloc.start()
    sizes = [len(row["documents"]) for row in unfinished_shards(0, TextFile(reader, 500), form, frozenset())]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sizes) == blocks and max(sizes) < module.SHARD_CHARACTERS + 300_000
    assert peak < (10 if blocks == 1 else 18) << 20
    assert sum(sizes) < 1_000_000 or blocks > 1


def test_files_of_one_name_have_distinct_ids(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text('{"text": "t"}\nno\n')
    readers = open_readers([tmp_path / "*" / "x.jsonl"], CorpusSettings.model_construct(), labelled=False)
    found = [name for reader in readers for shard in TextFile(reader, 500).shards() for name in shard["id"].to_pylist()]
    assert found == ["a/x.jsonl:1", "a/x.jsonl:2", "b/x.jsonl:1", "b/x.jsonl:2"]


class Failing:
    """A file whose third text can't be read."""

    def __init__(self, path, error):
        self.path, self.error = path, error

    def read(self):
        for number in range(2):
            yield Document(id=str(number), text="key1", labels=(), file="a", line=number + 1)
        raise self.error


def test_a_broken_file_costs_a_row_and_one_out_of_reach_ends_the_job():
    def records(path, error):
        [shard] = TextFile(Failing(path, error), 500).shards()
        return shard["error"].to_pylist()

    for error in (ValueError("cut short"), OSError("Corrupt snappy compressed data.")):
        assert records(Path("a.parquet"), error)[2:] == [f"the file cannot be read on from here: {error}"]
    with pytest.raises(OSError, match="No such file"):
        records(Path("a.jsonl"), FileNotFoundError(2, "No such file or directory", "a.jsonl"))
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        records("s3://bucket/a.jsonl", OSError("AWS Error NETWORK_CONNECTION"))


def test_a_file_out_of_reach_is_told_in_one_line(bundle_directory, tmp_path, ray_cluster):
    (tmp_path / "a.jsonl").mkdir()
    (tmp_path / "b.jsonl").write_text('{"text": "key1"}')
    readers = [JsonLines(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(RuntimeError) as caught:
        predict_files(bundle_directory, readers, tmp_path / "out", PredictionOptions())
    said = str(caught.value)
    assert "\n" not in said and "Is a directory" in said and "a.jsonl" in said
    assert said.endswith("; run the same command again to continue from here")
    assert not (tmp_path / "out" / "predictions.json").exists()
