"""From text to integers: the pipeline over readers, tokenizer, label index, word vectors and label features.

Passes with Ray Data, each over files that the pass before wrote, in parts of about equal size:

1. *stage*: read every record once; good ones go to blocks, their texts split into words and words and labels numbered
   by the block, bad ones to a list;
2. *labels*: count those of each block, rank those of all, and tell each block their ids;
3. *words*: likewise, over the training documents that have a label left;
4. *encode*: write the documents as integers, in files of a fixed number of documents;
5. *sum*: add up label features, a range of labels at a time.

Between the passes the driver decides what needs the whole corpus: which texts are duplicates and which documents are
drawn for validation. It holds a few numbers a document, never a text. Draws go by a hash of the text and files are
numbered in the order of the input, so the result doesn't depend on how the input was cut into blocks, how many tasks
there were or in which order they ended.
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from axml_ray.cluster import connect
from axml_ray.corpus import label_features, sources, word_vectors
from axml_ray.corpus.dictionary import Entries, in_vocabulary, read_dictionary
from axml_ray.corpus.draws import assign_splits
from axml_ray.corpus.label_index import read_names
from axml_ray.corpus.merging import merge
from axml_ray.corpus.page import write_page
from axml_ray.corpus.passes import (
    SMALL_BYTES,
    Plan,
    count_labels,
    count_pieces,
    count_translated,
    count_words,
    encode_files,
    over,
    stage_shards,
    translate_features,
)
from axml_ray.corpus.records import Shard
from axml_ray.corpus.separators import separator_warning
from axml_ray.corpus.staging import StagedBlock
from axml_ray.corpus.store import FORMAT, MANIFEST, TRANSLATION, VERSION, Corpus
from axml_ray.corpus.svmlight import read_features
from axml_ray.corpus.tables import SeparatedValues
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.corpus.translation import FITTED, Translation
from axml_ray.corpus.upkeep import places_of, state_of_input, what_changed
from axml_ray.corpus.vector_files import check_vectors
from axml_ray.files import clear_leftovers, whole_directory, write_json
from axml_ray.heartbeat import Heartbeat
from axml_ray.ragged import Ragged
from axml_ray.settings import SPLITS, CorpusSettings, SettingsError, fingerprint

log = logging.getLogger(__name__)
logging.getLogger("gensim").setLevel(logging.WARNING)


def prepare(settings: CorpusSettings, directory: Path, *, check: Callable[[Corpus], None] = lambda _: None) -> Corpus:
    """Prepare a corpus into `directory`, unless the same settings and inputs are already prepared there.

    What can be checked without reading the texts is checked before Ray is joined or started. Until everything is
    written, an older corpus at `directory` stays as it is.

    Args:
        settings: of the corpus.
        directory: where it lies, or will.
        check: called with what comes of it; where it raises, what lies at `directory` stays.

    Raises:
        SettingsError: an input is missing or empty, holds too many bad records, or a split has no labels.
    """
    shards = _shards(settings)
    beside = [("", path) for path in (settings.label_names, settings.label_features, settings.dictionary) if path]
    if settings.label_names:
        read_names(settings.label_names)
    if vectors := settings.word_vectors_path:
        check_vectors(vectors)
        beside += [("", vectors), *([("", vectors.with_name("vocab.txt"))] if vectors.suffix == ".npy" else [])]
    with Heartbeat("prepare: looking for changes in the inputs"):
        inputs = _states(shards, beside)
    mark = fingerprint(settings, inputs, FORMAT, VERSION)
    clear_leftovers(directory)
    try:
        corpus = Corpus.open(directory)
    except SettingsError:
        _check_replaceable(directory)
    else:
        if corpus.manifest["inputs"] == mark:
            log.info("prepare: %s is up to date", directory)
            check(corpus)
            return corpus
        log.info("prepare: %s; preparing %s anew", what_changed(corpus.manifest, settings, inputs), directory)
    entries = read_dictionary(settings.dictionary, settings.segmentation) if settings.dictionary else None
    directory.parent.mkdir(parents=True, exist_ok=True)  # or there is no need of Ray
    connect()
    with whole_directory(directory) as work:
        _Preparation(settings, work, entries).run(shards, mark, inputs)
        check(Corpus.open(work))
    return Corpus.open(directory)


def _states(shards: list[tuple[str, Shard]], beside: list[tuple[str, Path]]) -> list[list[Any]]:
    """Split, place and state of each input; another state means that it has changed."""
    inputs = []
    for split, place in [*((split, place) for split, shard in shards for place in places_of(shard)), *beside]:
        try:
            inputs.append([split, str(place), *state_of_input(place)])
        except OSError as error:  # a store's has no name and no number
            raise SettingsError(f"corpus: {place} cannot be read: {error.strerror or error}") from None
    return inputs


def _shards(settings: CorpusSettings) -> list[tuple[str, Shard]]:
    if settings.source == "installed_packages":
        try:
            return [("", shard) for shard in sources.installed_package_shards()]
        except (OSError, ValueError) as error:
            raise SettingsError(f"corpus.source: {error}") from None
    shards: list[tuple[str, Shard]] = []
    for split in SPLITS:
        try:
            shards += [(split, shard) for shard in sources.shards(getattr(settings, split), settings)]
        except (OSError, ValueError) as error:
            raise SettingsError(f"corpus.{split}: {error}") from None
    splits: dict[str, str] = {}
    for split, shard in shards:
        place = shard.path.resolve() if isinstance(shard.path, Path) else shard.path
        if (other := splits.setdefault(str(place), split)) != split:
            raise SettingsError(f"corpus.{other} and corpus.{split} both name {shard.path}; leave it out of one")
    return shards


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

    def __init__(self, settings: CorpusSettings, work: Path, entries: Entries | None = None):
        self.settings = settings
        self.entries = entries
        self.work = work
        self.stage = work / "stage"
        self.features = self.stage / "features"
        self.features.mkdir(parents=True)
        self.small = False

    def run(self, shards: list[tuple[str, Shard]], mark: str, inputs: list[list[Any]]) -> None:
        start = time.monotonic()
        paths, splits, about, rejections = self._stage(shards)
        rejected = sum(rejections.values())
        read = sum(map(len, splits))
        log.info("prepare: read %s documents from %s (%s rejected)", f"{read:,}", _files(len(shards)), f"{rejected:,}")
        summary = assign_splits(self.settings, splits, about, self._place)
        summary.rejected = rejections
        if warning := separator_warning(paths, "" if _has_lists(shards) else self.settings.label_separator):
            summary.warnings.append(warning)
            log.warning("prepare: WARNING: %s", warning)
        labels = self._merge_labels(paths, splits)
        for path, split in zip(paths, splits, strict=True):
            summary.leave_out_unlabelled(split, StagedBlock(Path(path)).array("labelled"))
        plan = Plan.of(paths, splits)
        documents = {split: int(plan.starts[split][-1]) for split in SPLITS}
        for name in SPLITS:
            if not documents[name]:
                raise SettingsError(f"{self._place(name)}: no document with a label is left in this split")
        if not self.settings.valid and documents["valid"] < self.settings.valid_documents:
            log.info(
                "prepare: %s validation documents: %s drawn (corpus.valid_documents is %s, at most a tenth of train), "
                "those without a label left out",
                f"{documents['valid']:,}", f"{summary.drawn_valid:,}", f"{self.settings.valid_documents:,}",
            )  # fmt: skip
        summary.count_kept(splits, about)
        del about
        self._merged("words", count_words, paths, splits)
        tokenizer, frequency = self._vocabulary()
        if self.settings.subwords:
            frequency = self._frequency_of_pieces(paths, splits, len(tokenizer))
        counts = ", ".join(f"{documents[split]:,} {split}" for split in SPLITS)
        log.info("prepare: %s documents, %s labels, %s words", counts, f"{labels['labels']:,}", f"{len(tokenizer):,}")
        rows = self._encode(plan, frequency)
        summary.tokens, summary.assignments = _sums(rows, "tokens"), _sums(rows, "labels")
        translation = self._translation(tokenizer, documents["train"], labels["trained"])
        if translation is not None and self.settings.label_features is None:
            self._translate_features(plan, translation)
        self._label_features(len(tokenizer))
        for directory in self.stage.iterdir():
            if directory.is_dir():
                shutil.rmtree(directory)
        coverage, dimension = self._word_vectors(tokenizer, translation)
        parts = sorted(path for path in self.work.rglob("*") if path.is_file() and path.parent != self.stage)
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "inputs": mark,
            "sources": inputs,
            "fingerprint": _content(self.work, parts),
            "settings": self.settings.model_dump(mode="json"),
            "counts": {
                "documents": documents,
                "labels": labels["labels"],
                "trained_labels": labels["trained"],
                "words": len(tokenizer),
                "rejected": rejected,
                "duplicates": summary.dropped_duplicates,
            },
            "summary": summary.result(labels),
            "word_vector_coverage": coverage,
            "word_vector_dimension": dimension,
        }
        # The page shows what the corpus is; it isn't a part of it that results depend on.
        page = write_page(self.work, self.settings.name, manifest["counts"], manifest["summary"])
        manifest["seconds"] = time.monotonic() - start
        manifest["files"] = {
            path.relative_to(self.work).as_posix(): path.stat().st_size for path in sorted([*parts, page])
        }
        write_json(self.work / MANIFEST, manifest)
        shutil.rmtree(self.stage)
        log.info("prepare: done in %.0f s", time.monotonic() - start)

    def _place(self, split: str) -> str:
        """The setting and the files that a split comes from, for messages."""
        files = ", ".join(map(str, getattr(self.settings, split)))
        return f"corpus.{split}" + (f" ({files})" if files else "")

    def _stage(
        self, shards: list[tuple[str, Shard]]
    ) -> tuple[list[str], list[np.ndarray], list[np.ndarray], dict[str, int]]:
        """Blocks, the split and `ABOUT` of each of their documents, and rejections by reason."""
        settings = self.settings
        parts = [
            (split, part, state_of_input(part.path)[0])
            for split, shard in shards
            for part in (shard.split(settings.block_bytes) if hasattr(shard, "split") else [shard])
        ]
        sizes = [min(size, settings.block_bytes) for _, _, size in parts]
        self.small = sum(size for _, _, size in parts) < SMALL_BYTES
        numbered = [(number, part) for number, (_, part, _) in enumerate(parts)]
        groups = _groups(numbered, sizes, min(settings.block_bytes, SMALL_BYTES))
        rows = over(
            groups, stage_shards, what="reading the texts", small=self.small, stage=self.stage, settings=settings
        )
        if failures := sorted((row["path"], row["failure"]) for row in rows if row["failure"]):
            raise SettingsError(f"corpus: {failures[0][0]} {failures[0][1]}")
        read = sum(row["rows"] for row in rows)
        reasons = self._rejections(read)
        paths = sorted(row["path"] for row in rows)
        splits, about = [], []
        for path in paths:
            name = parts[int(Path(path).name[:6])][0]
            found = np.array(StagedBlock(Path(path)).array("about"))
            about.append(found)
            splits.append(np.full(len(found), SPLITS.index(name) if name else 0, dtype=np.int8))
        return paths, splits, about, reasons

    def _rejections(self, read: int) -> dict[str, int]:
        reasons: dict[str, int] = {}
        first: dict[str, Any] = {}
        with (self.work / "rejected.jsonl").open("w", encoding="utf-8") as out:
            for path in sorted(self.stage.glob("*.rejected.jsonl")):
                with path.open(encoding="utf-8") as file:
                    for line in file:
                        out.write(line)
                        record = json.loads(line)
                        first = first or record
                        reason = _kind_of(record["reason"])
                        reasons[reason] = reasons.get(reason, 0) + 1
        rejected = sum(reasons.values())
        if rejected > self.settings.max_rejected_share * (read + rejected):
            more = f" (and {rejected - 1} more)" if rejected > 1 else ""
            raise SettingsError(
                f"{first['file']}:{first['line']}: {first['reason']}{more}; mend the line, or allow bad records "
                "with corpus.max_rejected_share"
            )
        return reasons

    def _merge_labels(self, paths: list[str], splits: list[np.ndarray]) -> dict[str, int]:
        found = self._merged("labels", count_labels, paths, splits)
        if not found["all"]:
            raise SettingsError(f"{self._place('train')}: no document has a label; every record's `labels` is empty")
        if not found["labels"]:
            raise SettingsError(f"corpus.min_label_count is {self.settings.min_label_count}: no label occurs so often")
        if not found["trained"]:
            raise SettingsError(f"{self._place('train')}: no training document has a label")
        return found

    def _merged(
        self, kind: str, count: Callable[..., Any], paths: list[str], splits: list[np.ndarray]
    ) -> dict[str, int]:
        """Count words or labels in the blocks and merge them; what the merge found."""
        groups = _groups(list(range(len(paths))), [len(split) for split in splits], 1 << 15)
        over(groups, count, what=f"counting {kind}", small=self.small, paths=paths, splits=self._shared(splits))
        given = {"paths": paths, "stage": self.stage, "work": self.work, "settings": self.settings}
        [found] = over([kind], merge, what=f"merging the counts of {kind}", small=self.small, **given)
        return found

    def _shared(self, value: Any) -> Any:
        return value if self.small else ray.put(value)

    def _vocabulary(self) -> tuple[Tokenizer, np.ndarray]:
        """The tokenizer, written, and the training documents of each of its words."""
        with pa.memory_map(str(self.stage / "vocabulary.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
        settings = self.settings
        tokenizer = Tokenizer.of_words(table["word"].to_pylist(), settings.segmentation, subwords=settings.subwords)
        tokenizer.save(self.work / "tokenizer.json")
        return tokenizer, np.concatenate([[0, 0], table["count"].to_numpy()]).astype(np.int64)

    def _frequency_of_pieces(self, paths: list[str], splits: list[np.ndarray], words: int) -> np.ndarray:
        """Training documents that each word is in, as itself or as a piece of another."""
        groups = _groups(list(range(len(paths))), [len(split) for split in splits], 1 << 15)
        given = {"paths": paths, "splits": self._shared(splits), "most": self.settings.max_tokens}
        over(groups, count_pieces, what="counting subwords", small=self.small, **given)
        frequency = np.zeros(words, dtype=np.int64)
        for path in paths:
            counts = StagedBlock(Path(path)).array("piece_counts")
            frequency[: len(counts)] += counts
        return frequency

    def _encode(self, plan: Plan, frequency: np.ndarray) -> list[dict[str, Any]]:
        for split in SPLITS:
            (self.work / split).mkdir()
        return over(
            plan.files(),
            encode_files,
            what="writing the texts as integers",
            small=self.small,
            plan=self._shared(plan),
            work=self.work,
            features=None if self.settings.label_features else self.features,
            frequency=self._shared(frequency),
            documents=int(plan.starts["train"][-1]),
            most=self.settings.max_tokens,
        )

    def _translation(self, tokenizer: Tokenizer, documents: int, trained: int) -> Translation | None:
        """What words are in the other language, written, where there is a dictionary."""
        if self.entries is None:
            return None
        known = in_vocabulary(self.entries, tokenizer.words, self.settings.dictionary_stemmer)
        random, tokens, labels = np.random.default_rng(0), [], []
        for file in sorted((self.work / "train").iterdir()):
            table = pq.read_table(file, columns=["tokens", "labels"])
            some = np.flatnonzero(random.random(len(table)) < FITTED / documents)
            tokens.append(Ragged.from_arrow(table["tokens"]).take(some))
            labels.append(Ragged.from_arrow(table["labels"]).take(some))
        found = Translation.fit(known, Ragged.concatenate(tokens), Ragged.concatenate(labels), trained)
        found.save(self.work / TRANSLATION)
        share = 100 * np.mean(found.words.lengths > 0)
        log.info("prepare: %s translates %.1f%% of the words", self.settings.dictionary, share)
        return found

    def _translate_features(self, plan: Plan, translation: Translation) -> None:
        """Let the features of labels be those of their texts as networks read them."""
        files = [files for files in plan.files() if files[0] == "train"]
        given = {"work": self.work, "features": self.features, "translation": self._shared(translation)}
        over(files, count_translated, what="counting translated words", small=self.small, **given)
        frequency = sum(np.load(path) for path in self.features.glob("*.counts.npy"))
        given |= {"frequency": self._shared(frequency), "documents": int(plan.starts["train"][-1])}
        over(files, translate_features, what="translating label features", small=self.small, **given)

    def _label_features(self, words: int) -> None:
        path = self.work / "label_features.npz"
        if self.settings.label_features is not None:
            read_features(self.settings.label_features, self.work / "labels.parquet", self.settings.max_terms, path)
            return
        counts = label_features.train_counts(self.work / "labels.parquet")
        files = len(list(self.features.glob("*.offsets.npy")))
        terms = label_features.mean_terms(self.features, files)
        ranges = label_features.label_ranges(counts, terms)
        given = {"files": files, "words": words, "max_terms": self.settings.max_terms, "features": self.features}
        groups = _groups(list(enumerate(ranges)), [1] * len(ranges), max(1, len(ranges) // 16))
        over(
            groups,
            label_features.sum_ranges,
            what="summing label features",
            small=self.small or len(ranges) == 1,
            **given,
        )
        label_features.assemble(path, self.features, len(ranges), words)

    def _word_vectors(self, tokenizer: Tokenizer, translation: Translation | None) -> tuple[float, int]:
        settings = self.settings
        path, coverage = settings.word_vectors_path, 0.0
        if path is not None:
            vectors, coverage = word_vectors.read_vectors(path, tokenizer.words, settings.seed)
            log.info("prepare: %s knows %.1f%% of the words", path, 100 * coverage)
        elif settings.word_vectors == "train":
            log.info("prepare: learning word vectors from the training texts")
            with Heartbeat("prepare: learning word vectors"):
                vectors, coverage = word_vectors.train_vectors(
                    word_vectors.TokenFiles(sorted((self.work / "train").iterdir()), translation),
                    len(tokenizer),
                    settings.word_dimension,
                    epochs=settings.word_vector_epochs,
                    seed=settings.seed,
                )
        else:
            vectors = word_vectors.random_vectors(len(tokenizer), settings.word_dimension, settings.seed)
        word_vectors.save_vectors(self.work / "word_vectors.safetensors", vectors)
        return coverage, vectors.shape[1]


def _has_lists(shards: Sequence[tuple[str, Shard]]) -> bool:
    """Whether labels are lists in all of the files, so that no separator splits them."""
    return not any(isinstance(shard, SeparatedValues) for _, shard in shards)


def _groups(items: Sequence[Any], sizes: Sequence[int], most: int) -> list[list[Any]]:
    """Consecutive items together up to a size, at least one each."""
    groups: list[list[Any]] = []
    held = 0
    for item, size in zip(items, sizes, strict=True):
        if not groups or held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(item)
        held += size
    return groups


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _sums(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    return {split: sum(int(row[key]) for row in rows if row["split"] == split) for split in SPLITS}


def _kind_of(reason: str) -> str:
    """A reason without what differs from record to record, to count by."""
    return reason.partition(":")[0].partition(" at ")[0]


def _content(directory: Path, files: list[Path]) -> str:
    """Changes with what was prepared, whatever it was prepared from: equal texts, copied or touched, are equal."""

    def digest_of(path: Path) -> bytes:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    digest = hashlib.sha256()
    with ThreadPoolExecutor() as threads:
        for path, content in zip(files, threads.map(digest_of, files), strict=True):
            digest.update(f"{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:12]
