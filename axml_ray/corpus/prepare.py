"""From text to integers: the pipeline over readers, tokenizer, label index, word vectors and label features.

Three passes with Ray Data, each over files that the pass before wrote, one task a file:

1. *stage*: read every record once; good ones go to Parquet with a digest of their text, bad ones to a list;
2. *count*: in how many training documents each word, and how often each label, occurs;
3. *encode*: write the documents as integers.

Between the passes the driver decides what needs the whole corpus: which texts are duplicates, which documents are
drawn for validation, which words and labels are known. Draws go by a hash of the text and files are named by their
place in the input, so the result doesn't depend on how many tasks there were or in which order they ended.
"""

import hashlib
import json
import logging
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from safetensors.numpy import save_file
from scipy import sparse

from axml_ray.cluster import connect
from axml_ray.corpus import word_vectors
from axml_ray.corpus.label_features import label_centroids
from axml_ray.corpus.label_index import LabelIndex, read_names
from axml_ray.corpus.passes import DROPPED, StagedFile, count_file, encode_file, over, stage_shard
from axml_ray.corpus.sources import Shard, installed_package_shards, json_lines_shards
from axml_ray.corpus.store import FORMAT, MANIFEST, SPLITS, VERSION, Corpus
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.files import whole_directory, write_json
from axml_ray.ragged import Ragged
from axml_ray.settings import CorpusSettings, SettingsError, fingerprint

log = logging.getLogger(__name__)
logging.getLogger("gensim").setLevel(logging.WARNING)


def prepare(settings: CorpusSettings, directory: Path) -> Corpus:
    """Prepare a corpus into `directory`, unless the same settings and inputs are already prepared there.

    What can be checked without reading the texts is checked before Ray is joined or started. Until everything is
    written, an older corpus at `directory` stays as it is.

    Raises:
        SettingsError: an input is missing or empty, holds too many bad records, or a split has no labels.
    """
    shards = _shards(settings)
    names = read_names(settings.label_names) if settings.label_names else {}
    beside = [settings.label_names] if settings.label_names else []
    if vectors := settings.word_vectors_path:
        word_vectors.open_vectors(vectors)
        beside += [vectors, vectors.with_name("vocab.txt")]
    inputs = [[split, str(shard.path), *_state(shard.path)] for split, shard in shards]
    inputs += [["", str(path), *_state(path)] for path in beside]
    mark = fingerprint(settings, inputs, FORMAT, VERSION)
    try:
        corpus = Corpus.open(directory)
        if corpus.manifest["inputs"] == mark:
            log.info("prepare: %s is up to date", directory)
            return corpus
        log.info("prepare: %s was made with other settings or inputs; preparing anew", directory)
    except SettingsError:
        _check_replaceable(directory)
    connect()
    with whole_directory(directory) as work:
        _Preparation(settings, work).run(shards, mark, names)
    return Corpus.open(directory)


def _shards(settings: CorpusSettings) -> list[tuple[str, Shard]]:
    if settings.source == "installed_packages":
        return [("", shard) for shard in installed_package_shards()]
    shards: list[tuple[str, Shard]] = []
    for split in SPLITS:
        try:
            shards += [(split, shard) for shard in json_lines_shards(getattr(settings, split))]
        except (OSError, ValueError) as error:
            raise SettingsError(f"corpus.{split}: {error}") from None
    return shards


def _state(path: Path) -> tuple[int, int]:
    """Changes with what a reader finds at `path`; importing a package, which may write byte code, changes nothing."""
    if path.is_dir():
        sizes = [file.stat().st_size for file in path.rglob("*.py") if file.is_file()]
        return sum(sizes), len(sizes)
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _check_replaceable(directory: Path) -> None:
    """Raise where something that isn't a corpus would have to make room, such as somebody's raw data."""
    if directory.exists() and not (directory / MANIFEST).is_file():
        if directory.is_dir() and not any(directory.iterdir()):
            return
        raise SettingsError(
            f"{directory}: exists and is not a prepared corpus; choose another corpus.name or corpora, or remove it"
        )


class _Preparation:
    """One run of the pipeline, inside a directory that isn't visible under its name yet."""

    def __init__(self, settings: CorpusSettings, work: Path):
        self.settings = settings
        self.work = work
        self.stage = work / "stage"
        self.stage.mkdir()

    def run(self, shards: list[tuple[str, Shard]], mark: str, names: dict[str, str]) -> None:
        start = time.monotonic()
        staged, rejected = self._stage(shards)
        read = sum(len(file.split) for file in staged)
        log.info("prepare: read %s documents from %s files (%s rejected)", f"{read:,}", len(shards), rejected)
        duplicates = self._assign_splits(staged)
        tokenizer, kept_labels = self._vocabulary(staged)
        index = self._label_index(staged, kept_labels, names)
        documents = self._encode(staged, tokenizer, index)
        shutil.rmtree(self.stage)
        for split in SPLITS:
            if not documents[split]:
                raise SettingsError(f"{self._place(split)}: no document with a label is left in this split")
        counts = ", ".join(f"{documents[split]:,} {split}" for split in SPLITS)
        log.info("prepare: %s documents, %s labels, %s words", counts, f"{len(index):,}", f"{len(tokenizer):,}")
        coverage, dimension = self._features(tokenizer, index)
        files = sorted(path for path in self.work.rglob("*") if path.is_file())
        write_json(
            self.work / MANIFEST,
            {
                "format": FORMAT,
                "version": VERSION,
                "inputs": mark,
                "fingerprint": _content(self.work, files),
                "settings": self.settings.model_dump(mode="json"),
                "counts": {
                    "documents": documents,
                    "labels": len(index),
                    "trained_labels": index.trained,
                    "words": len(tokenizer),
                    "rejected": rejected,
                    "duplicates": duplicates,
                },
                "word_vector_coverage": coverage,
                "word_vector_dimension": dimension,
                "seconds": time.monotonic() - start,
                "files": {path.relative_to(self.work).as_posix(): path.stat().st_size for path in files},
            },
        )
        log.info("prepare: done in %.0f s", time.monotonic() - start)

    def _place(self, split: str) -> str:
        """The setting and the files that a split comes from, for messages."""
        files = ", ".join(map(str, getattr(self.settings, split)))
        return f"corpus.{split}" + (f" ({files})" if files else "")

    def _stage(self, shards: list[tuple[str, Shard]]) -> tuple[list[StagedFile], int]:
        rows = over(range(len(shards)), stage_shard, shards=ray.put(shards), stage=self.stage)
        if failures := sorted((row["path"], row["failure"]) for row in rows if row["failure"]):
            raise SettingsError(f"corpus: {failures[0][0]} cannot be read: {failures[0][1]}")
        rejected = 0
        with (self.work / "rejected.jsonl").open("w", encoding="utf-8") as out:
            for path in sorted(self.stage.glob("*.rejected.jsonl")):
                content = path.read_text(encoding="utf-8")
                rejected += content.count("\n")
                out.write(content)
        read = sum(row["rows"] for row in rows)
        if rejected > self.settings.max_rejected_share * (read + rejected):
            first = json.loads((self.work / "rejected.jsonl").open(encoding="utf-8").readline())
            more = f" (and {rejected - 1} more)" if rejected > 1 else ""
            raise SettingsError(
                f"{first['file']}:{first['line']}: {first['reason']}{more}; mend the line, or allow bad records "
                "with corpus.max_rejected_share"
            )
        staged = []
        for row in sorted(rows, key=lambda row: row["path"]):
            table = pq.read_table(row["path"], columns=["split", "digest"])
            digest = np.array(table["digest"].to_pylist(), dtype="S16")
            staged.append(StagedFile(row["path"], table["split"].to_numpy().astype(np.int8), digest))
        return staged, rejected

    def _assign_splits(self, staged: list[StagedFile]) -> int:
        """Choose validation documents and subsets in place; returns how many duplicates were dropped."""
        settings = self.settings
        if not staged:
            raise SettingsError(f"{self._place('train')}: holds no documents")
        split = np.concatenate([file.split for file in staged])
        for number, name in enumerate(SPLITS):
            if getattr(settings, name) and not np.any(split == number):
                raise SettingsError(f"{self._place(name)}: holds no documents")
        digest = np.concatenate([file.digest for file in staged])
        train, valid, test = range(3)
        if settings.source == "installed_packages":
            # One byte pair of the digest is as good as a uniform number.
            share = np.array([int.from_bytes(bytes(d)[:4].ljust(4, b"\0"), "big") for d in digest]) / 2**32
            split[:] = np.where(share < settings.test_share, test, train)
        duplicates = 0
        if settings.drop_duplicates:
            # test first, so that what is judged stays and what would leak into it goes
            order = np.lexsort((np.arange(len(split)), -split))
            _, first = np.unique(digest[order], return_index=True)
            repeated = np.ones(len(split), dtype=bool)
            repeated[order[first]] = False
            split[repeated] = DROPPED
            duplicates = int(repeated.sum())
        key = np.array([hashlib.blake2b(bytes(d), key=b"draw%d" % settings.seed).digest()[:8] for d in digest])

        def keep_only(number: int, most: int | None) -> None:
            rows = np.flatnonzero(split == number)
            if most is not None:
                split[rows[np.argsort(key[rows], kind="stable")][most:]] = DROPPED

        if not settings.valid:
            rows = np.flatnonzero(split == train)
            if len(rows) <= settings.valid_documents:
                raise SettingsError(
                    f"corpus.valid_documents is {settings.valid_documents}, but train holds {len(rows)} documents; "
                    "take fewer, or give corpus.valid"
                )
            split[rows[np.argsort(key[rows], kind="stable")][: settings.valid_documents]] = valid
        keep_only(train, settings.max_train_documents)
        keep_only(test, settings.max_test_documents)
        starts = np.cumsum([0, *(len(file.split) for file in staged)])
        for file, begin, end in zip(staged, starts, starts[1:], strict=False):
            file.split[:] = split[begin:end]
        return duplicates

    def _vocabulary(self, staged: list[StagedFile]) -> tuple[Tokenizer, set[str]]:
        rows = over(range(len(staged)), count_file, staged=ray.put(staged), settings=self.settings)
        words: Counter[str] = Counter()
        labels: Counter[str] = Counter()
        for row in rows:
            words.update(dict(zip(row["words"], row["word_counts"].tolist(), strict=True)))
            labels.update(dict(zip(row["labels"], row["label_counts"].tolist(), strict=True)))
        if not labels:
            raise SettingsError(f"{self._place('train')}: no document has a label; every record's `labels` is empty")
        tokenizer = Tokenizer.build(words, self.settings.vocabulary_size, self.settings.min_document_frequency)
        kept = {label for label, count in labels.items() if count >= self.settings.min_label_count}
        if not kept:
            raise SettingsError(f"corpus.min_label_count is {self.settings.min_label_count}: no label occurs so often")
        return tokenizer, kept

    def _label_index(self, staged: list[StagedFile], kept: set[str], names: dict[str, str]) -> LabelIndex:
        train: Counter[str] = Counter()
        others: set[str] = set()
        for file in staged:
            table = pq.read_table(file.path, columns=["labels"])
            for row, split in zip(table["labels"].to_pylist(), file.split.tolist(), strict=True):
                if split == 0:
                    train.update(label for label in row if label in kept)
                elif split != DROPPED:
                    others.update(label for label in row if label in kept)
        if not train:
            raise SettingsError(f"{self._place('train')}: no training document has a label")
        return LabelIndex.build(train, sorted(others - train.keys()), names)

    def _encode(self, staged: list[StagedFile], tokenizer: Tokenizer, index: LabelIndex) -> dict[str, int]:
        for split in SPLITS:
            (self.work / split).mkdir()
        tokenizer.save(self.work / "tokenizer.json")
        index.save(self.work / "labels.parquet")
        rows = over(range(len(staged)), encode_file, staged=ray.put(staged), work=self.work, settings=self.settings)
        return {split: sum(row[split] for row in rows) for split in SPLITS}

    def _features(self, tokenizer: Tokenizer, index: LabelIndex) -> tuple[float, int]:
        settings = self.settings
        table = pa.concat_tables(
            pq.read_table(path, columns=["tokens", "labels"]) for path in sorted((self.work / "train").iterdir())
        )
        tokens, labels = Ragged.from_arrow(table["tokens"]), Ragged.from_arrow(table["labels"])
        centroids = label_centroids(tokens, labels, len(tokenizer), index.trained)
        sparse.save_npz(self.work / "label_features.npz", centroids)
        path, coverage = settings.word_vectors_path, 0.0
        if path is not None:
            vectors, coverage = word_vectors.read_vectors(path, tokenizer.words, settings.seed)
            log.info("prepare: %s knows %.1f%% of the words", path, 100 * coverage)
        elif settings.word_vectors == "train":
            log.info("prepare: learning word vectors from %s words of text", f"{len(tokens.values):,}")
            vectors, coverage = word_vectors.train_vectors(
                tokens,
                len(tokenizer),
                settings.word_dimension,
                epochs=settings.word_vector_epochs,
                seed=settings.seed,
            )
        else:
            vectors = word_vectors.random_vectors(len(tokenizer), settings.word_dimension, settings.seed)
        save_file({"word_vectors": vectors}, self.work / "word_vectors.safetensors")
        return coverage, vectors.shape[1]


def _content(directory: Path, files: list[Path]) -> str:
    """Changes with what was prepared, whatever it was prepared from: equal texts, copied or touched, are equal."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(directory).as_posix()}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]
