"""What an experiment is: typed, validated settings.

- One frozen model per room of the house; a key that no model knows is an error, so a misspelling never passes.
- Every path is absolute once loaded: Ray changes the working directory of its workers. A relative path is
  taken from `$AXML_RAY_HOME` (set by `make cluster`, so that a submitted job, which runs in a snapshot of the
  working directory, still writes where its user looks), else from the current directory.
- `fingerprint` names what a result depends on; resuming compares fingerprints, never times of files.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from axml_ray.settings.base import (
    HOME_VARIABLE,
    NAME,
    SPLITS,
    AbsolutePath,
    AbsolutePlace,
    CsvDelimiter,
    LabelFeatures,
    Name,
    NotNegative,
    Positive,
    Precision,
    Seed,
    Settings,
    SettingsError,
    Share,
    Stemmer,
    Weights,
    absolute,
    absolute_place,
    at_level,
    check_power_of_two,
    fingerprint,
)
from axml_ray.settings.members import KINDS, CombinerKind, FeatureSettings, Kind, MemberSettings, members_model
from axml_ray.settings.presets import Choice, CorpusSize, Preset, choose

__all__ = [
    "HOME_VARIABLE",
    "NAME",
    "SPLITS",
    "AbsolutePath",
    "AbsolutePlace",
    "CorpusSettings",
    "EnsembleSettings",
    "EvaluationSettings",
    "Experiment",
    "LabelFeatures",
    "Name",
    "NetworkSettings",
    "NotNegative",
    "Positive",
    "Precision",
    "ResourceSettings",
    "Seed",
    "Settings",
    "SettingsError",
    "Share",
    "Stemmer",
    "TrainingSettings",
    "TreeSettings",
    "Weights",
    "absolute",
    "absolute_place",
    "adapt",
    "at_level",
    "changed",
    "fingerprint",
    "register_member",
]


class ExpectedCounts(Settings):
    """How large a corpus will be, for `jobs/plan.py` before it is prepared; nothing else reads this."""

    documents: Positive | None = None
    """Training documents."""
    labels: Positive | None = None
    """Labels with training documents."""
    words: Annotated[int, Field(ge=3)] | None = None
    """Words of the vocabulary; by default `corpus.vocabulary_size`, the most it may have."""
    tokens: Annotated[float, Field(gt=0)] | None = None
    """Mean number of words of a document, cut at `corpus.max_tokens`."""
    valid_documents: Positive | None = None
    """Validation documents; by default as many as would be drawn (`corpus.valid_documents`)."""


class CorpusSettings(Settings):
    """Which texts, and how they become integers."""

    name: Name = "corpus"
    """Directory of the prepared corpus below `corpora`."""
    source: Literal["auto", "json_lines", "parquet", "datasets", "csv", "text_pairs", "installed_packages"] = "auto"
    """Format of the files, told by their names for `auto`; or the docstrings of the installed Python packages."""
    train: tuple[AbsolutePlace, ...] = ()
    """Files, directories, globs or URLs of the training documents."""
    valid: tuple[AbsolutePlace, ...] = ()
    """The same for validation; where none is given, documents are drawn from train (`valid_documents`)."""
    test: tuple[AbsolutePlace, ...] = ()
    """The same for the test split, used for the final evaluation only; where none is given, `test_share` of the
    documents of train are drawn."""
    text_field: str = "text"
    """Field or column of the text, or of the body where there is a title."""
    title_field: str | None = None
    """Field or column of a title; it is put before the text, with ` /SEP/ ` between them."""
    labels_field: str = "labels"
    """Field or column of the labels: a list, or in CSV one cell."""
    id_field: str = "id"
    """Field or column of the document's id, if it has one."""
    label_separator: Annotated[str, Field(min_length=1)] = ";"
    """Between the labels in a cell of CSV."""
    csv_delimiter: CsvDelimiter | None = None
    """Between the cells of CSV: one character, or `tab`; by default a comma, and a tab in .tsv and .tab."""
    valid_documents: Positive = 200
    """Documents drawn from train for validation, but at most a tenth of train (paper's program: 200, or 4,000 for its
    large corpora)."""
    test_share: Share = 0.1
    """Share of the documents that becomes the test split where `test` names no files, by a hash of the text."""
    max_train_documents: Positive | None = None
    """Train on that many documents only, drawn by a hash of the text."""
    max_test_documents: Positive | None = None
    """Test on that many documents only, drawn by a hash of the text."""
    drop_duplicates: bool = False
    """Keep each text once over all splits; a test text that is also in train is then dropped from train."""
    min_label_count: Positive = 1
    """Labels of fewer documents, over all splits, are dropped."""
    max_rejected_share: Share = 0.0
    """Bad records are written to `rejected.jsonl`; a larger share of them than this is an error. Of a row of CSV that
    never ends, each line is one."""
    label_names: AbsolutePath | None = None
    """Readable names: lines of label, tab, name; or line i names label i; or the repository's `lbl.json`."""
    label_features: AbsolutePath | None = None
    """SVMlight file of features, a label or a training document a line; by default TF-IDF centroids of the texts."""
    dictionary: AbsolutePath | None = None
    """For texts in two languages, a dictionary from one to the other, by which networks and names read a text of the
    first in words of the second, and linear classifiers and neighbours in words of both: lines of word, tab,
    translation, or Ding's format (Debian's package trans-de-en). The second should be the language of the labels'
    names."""
    dictionary_stemmer: Stemmer | None = "german"
    """Language of Snowball's stemmers, the dictionary's first, by which words that it lacks are looked up; null looks
    words up as they are."""
    max_terms: Positive | None = None
    """Strongest terms that a label's features keep; by default all. Millions of labels need a limit."""
    segmentation: Literal["words", "characters"] = "words"
    """`characters` makes a word of each character of scripts written without blanks, such as Chinese and Thai."""
    max_tokens: Positive = 500
    """Texts are cut after that many words."""
    vocabulary_size: Annotated[int, Field(ge=3)] = 500_000
    """Most words of the vocabulary, padding and unknown included; ranked by document frequency."""
    min_document_frequency: Positive = 1
    """Words of fewer training documents become unknown, so that training meets the unknown word too, or `subwords`."""
    subwords: bool = False
    """Write a word outside the vocabulary as the longest words of the vocabulary that it is made of, single characters
    at worst; otherwise all such words are one. Words with a character that no training text holds, and those of more
    than 100, stay unknown. For languages that inflect or write compounds as one word. The characters come on top of
    `vocabulary_size`, and `max_tokens` then also counts pieces."""
    word_vectors: str = "train"
    """`train` (skip-gram on the training texts), `random`, or a file: GloVe, word2vec or fastText `.vec` text, word2vec
    binary, each also as gzip or zip; or an `.npy` file with `vocab.txt` beside it."""
    word_dimension: Positive = 300
    """Dimension of `train` and `random` word vectors."""
    word_vector_epochs: Positive = 5
    """Passes over the training texts for `train`."""
    seed: Seed = 0
    """Draws validation documents and random word vectors."""
    block_bytes: Annotated[int, Field(ge=1)] = Field(default=32 << 20, exclude=True)
    """Text that a task of preparation holds at a time, in bytes. No result depends on it, so no fingerprint does."""
    expected: ExpectedCounts = Field(default=ExpectedCounts(), exclude=True)
    """What is known of the corpus before it is prepared. No result depends on it, so no fingerprint does."""

    @model_validator(mode="after")
    def _source_has_files(self) -> Self:
        if self.source != "installed_packages" and not self.train:
            raise ValueError(f"corpus.train: give at least one file for source {self.source}")
        if not self.test and not self.test_share:
            raise ValueError("corpus.test_share is 0 and corpus.test names no file; give one of them")
        if self.source == "installed_packages" and (self.train or self.valid or self.test):
            raise ValueError("corpus.train, .valid and .test: leave them out for installed_packages")
        return self

    @property
    def draws_test(self) -> bool:
        """Whether the test split is drawn from the documents of train."""
        return not self.test

    @property
    def word_vectors_path(self) -> Path | None:
        """The file of `word_vectors`, absolute; None for `train` and `random`."""
        return None if self.word_vectors in ("train", "random") else absolute(self.word_vectors)


class TreeSettings(Settings):
    """The shallow and wide label tree (paper, "Building Shallow and Wide PLT")."""

    height: Annotated[int, Field(ge=0)] = 1
    """H: levels between root and leaves; 0 is the paper's network without a tree."""
    cluster_size: Annotated[int, Field(ge=2)] = 16
    """K = M = 2^c: most children of an inner node."""
    beam: Positive = 40
    """C: nodes of a level whose children are scored on the next."""
    kind: Literal["balanced", "kmeans", "hierarchy", "random"] = "balanced"
    """Balanced 2-means, compressed (the paper's); unbalanced K-way k-means (Bonsai's); a given hierarchy; at random."""
    features: LabelFeatures = "tfidf"
    """What labels are clustered by: TF-IDF centroids (the paper's), their word vectors, or the labels' names."""
    hierarchy: AbsolutePath | None = None
    """For `kind: hierarchy`: a file of lines of label, tab, parent; labels as the corpus writes them."""

    @model_validator(mode="after")
    def _hierarchy_has_a_file(self) -> Self:
        if self.kind == "hierarchy" and self.hierarchy is None:
            raise ValueError("tree.hierarchy: give a file of label, tab, parent for kind hierarchy")
        if self.kind != "hierarchy" and self.hierarchy is not None:
            raise ValueError(f"tree.hierarchy: is read for kind hierarchy only, kind is {self.kind}; leave it out")
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """What the shape of a tree depends on: its settings, and what the hierarchy's file holds rather than its path.

        Raises:
            SettingsError: the file can't be read.
        """
        content: str | None = None
        if self.hierarchy is not None:
            try:
                content = hashlib.sha256(self.hierarchy.read_bytes()).hexdigest()
            except OSError as error:
                raise SettingsError(f"tree.hierarchy: {self.hierarchy} cannot be read ({error.strerror})") from None
        return {**self.model_dump(mode="json"), "hierarchy": content}

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        check_power_of_two("tree.cluster_size", self.cluster_size)
        return self


class NetworkSettings(Settings):
    """The attention-aware network of one level (paper, "Attention-Aware Deep Model"), or what it is compared with."""

    kind: Literal["attention", "bilstm", "xml_cnn"] = "attention"
    """The paper's network, or one of its table of ablations: a BiLSTM with max-pooling, or XML-CNN."""
    max_tokens: Positive | None = None
    """First words of a text that the networks read; by default all of `corpus.max_tokens`, as linear classifiers do."""
    hidden: Positive = 256
    """N̂: units of the LSTM in each direction."""
    fully_connected: Annotated[tuple[Positive, ...], Field(min_length=1)] = (256,)
    """Units of the fully connected layers of attention, one or two."""
    embedding_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Dropout after the embedding."""
    encoder_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout after the BiLSTM, and after the bottleneck of bilstm and xml_cnn."""
    evidence: bool = False
    """Not in the paper: adds to a label's logit, times one learned weight, how well its attention vector matches the
    text (the log of the mean of the exponentiated attention scores). Learns faster, above all from few documents."""
    attention_start: Literal["random", "features", "names"] = "random"
    """Where attention vectors begin: at random, as in the paper, at the words of their label's TF-IDF centroid, or at
    those of its readable name. Where the corpus has no names a label is its own and should be readable."""
    path_weight: Share = 1.0
    """How much the score of its parent counts in a node's (as logarithms): 1 is the paper's product of probabilities
    (equation 1). A level is trained on the whole beam above it, whether or not a node of that beam is true, so what it
    gives is already the probability of the node, not of the node given its parent: the product counts parents twice.
    0.25 was best, or as good as 0, on the validation documents of two corpora."""
    output_bias: Literal["default", "positive_rate"] = "default"
    """First value of the output's bias: PyTorch's, as in the paper, or, not in the paper, the log-odds of the share of
    candidates that are true, so that training does not begin by unlearning one half."""
    train_embeddings: bool = True
    """False freezes the word vectors (as the paper does for EUR-Lex and Wiki10-31K)."""
    bottleneck: Positive = 512
    """Units of the fully connected layer between pooling and output of bilstm and xml_cnn."""
    filter_widths: Annotated[tuple[Positive, ...], Field(min_length=1)] = (2, 4, 8)
    """Words that the filters of xml_cnn span."""
    filters: Positive = 128
    """Filters of xml_cnn of each width."""
    pooling_chunks: Positive = 8
    """p: chunks of a text of which xml_cnn takes each filter's maximum."""

    @model_validator(mode="after")
    def _attention_has_evidence_and_start(self) -> Self:
        mends = []
        if self.evidence:
            mends.append("network.evidence to false")
        if self.attention_start != "random":
            mends.append("network.attention_start to random")
        if mends and self.kind != "attention":
            raise ValueError(f"network.kind {self.kind} has no attention; set {' and '.join(mends)}")
        return self


class TrainingSettings(Settings):
    """How a level is trained. A value per level may be given; the last one serves all deeper levels."""

    epochs: Annotated[tuple[Positive, ...], Field(min_length=1)] = (10,)
    """E: how often the training documents are gone through at most, per level."""
    average_after: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (2,)
    """Epochs before stochastic weight averaging begins, per level."""
    averaging: bool = True
    """Stochastic weight averaging; False keeps the last scored weights' best."""
    batch_size: Positive = 40
    """B: documents a step, over all workers."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Of Adam."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 5.0
    """Gradients are clipped at this times the largest of the last five norms."""
    score_every: Positive = 100
    """Steps between snapshots of the average, each scored on the validation split."""
    patience: Positive = 50
    """Scorings without a gain in nDCG@5 after which a level stops."""
    documents: Positive | None = None
    """Train on that many of the training documents only, always the same ones; trees are clustered by all of them."""
    true_candidates: bool = True
    """A level's candidates are first the children of a text's true clusters, also of those that its beam missed (the
    paper's way); False trains on what prediction meets, the children of the beam alone."""
    precision: Precision = "auto"
    """Of matrix products; auto takes bfloat16 where the hardware is faster by it. Master weights are float32."""


class EnsembleSettings(Settings):
    """How many label trees there are, and how the members' scores are combined."""

    trees: Positive = 3
    """Label trees, each clustered and trained with a seed of its own."""
    top_labels: Annotated[int, Field(ge=5)] = 100
    """Best labels of each member whose scores are combined; a label that a member left out counts 0 for it."""
    combiner: CombinerKind = "mean"
    """How the members' scores become the ensemble's: their weighted mean (the paper's), or, not in the paper, that
    mean calibrated by how frequent a label is (`calibrated`), or stacking on top of this (`stacked`), both fitted on
    the validation documents."""


class ResourceSettings(Settings):
    """What is asked of the Ray cluster."""

    workers: Positive = 1
    """Ray Train workers of each tree."""
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    """CPUs reserved for a worker; below 1, several trees share a core."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs reserved for a worker; 0 trains on the CPU. Below 1, trees of one worker each share a GPU."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory reserved for a worker, GiB; by default none is, and workers start wherever there are CPUs for them."""
    threads: Positive | None = None
    """Torch threads of a worker; by default `cpus_per_worker`, at least 1."""
    predictors: Positive = 1
    """Model actors that score the test split."""
    checkpoint_minutes: Annotated[float, Field(ge=0)] = 5.0
    """Least time between two checkpoints of a level that trains; they are written after scorings."""
    max_failures: Annotated[int, Field(ge=0)] = 2
    """Times a tree's worker group is started again after a worker died."""

    @model_validator(mode="after")
    def _gpus_are_whole(self) -> Self:
        gpus = self.gpus_per_worker
        if gpus > 1 and gpus % 1:
            raise ValueError(f"resources.gpus_per_worker is {gpus:g}; above 1, take a whole number")
        if 0 < gpus < 1 < self.workers:
            raise ValueError(
                f"resources.gpus_per_worker is {gpus:g}, and workers of one tree can't share a GPU; set it to 1, or "
                "resources.workers to 1"
            )
        return self

    @property
    def threads_of_worker(self) -> int:
        """Torch threads of a worker."""
        return self.threads or max(1, int(self.cpus_per_worker))

    @property
    def of_a_worker(self) -> dict[str, float]:
        """What Ray reserves for a worker, by its names: CPU, GPU, and memory in bytes."""
        asked = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker, "memory": (self.memory_gib or 0) * 2**30}
        return {kind: each for kind, each in asked.items() if each}


class EvaluationSettings(Settings):
    """How a run is judged; changing it never asks for a new training."""

    propensity_a: Annotated[float, Field(gt=0)] = 0.55
    """A; 0.6 for Amazon-670K and Amazon-3M, 0.5 for Wiki-500K."""
    propensity_b: Annotated[float, Field(gt=0)] = 1.5
    """B; 2.6 for Amazon-670K and Amazon-3M, 0.4 for Wiki-500K."""
    head_from: Positive = 100
    """Least training documents of a label of the head, the most frequent band that scores are also given for."""
    torso_from: Positive = 10
    """Least training documents of a label of the torso; the tail has fewer, but one at least."""
    resamples: Annotated[int, Field(ge=20)] = 1_000
    """Samples that an interval or a test is drawn from."""
    seed: Seed = 0
    """Of these samples, and of the documents that a report shows."""

    @model_validator(mode="after")
    def _bands_are_ordered(self) -> Self:
        if self.torso_from >= self.head_from:
            raise ValueError(
                f"evaluation.torso_from is {self.torso_from}, evaluation.head_from {self.head_from}; take a smaller "
                "torso_from"
            )
        return self


class Experiment(BaseSettings):
    """A corpus, a tree, a network, its training and its evaluation."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, env_prefix="AXML_RAY_UNUSED_"
    )

    preset: Preset = "paper"
    """Values of settings to start from: exactly the paper's, those recommended (best on validation documents), or those
    adapted to the prepared corpus (`auto`). A config contains what differs from them."""
    name: Name = "experiment"
    """Directory of the run below `runs`."""
    seed: Seed = 0
    """Seed of the first tree; the others count on from it."""
    runs: AbsolutePath = Field(default=Path("runs"), validate_default=True)
    """Directory of all runs."""
    corpora: AbsolutePath = Field(default=Path("corpora"), validate_default=True)
    """Directory of all prepared corpora."""
    corpus: CorpusSettings = CorpusSettings.model_construct()
    tree: TreeSettings = TreeSettings()
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    features: FeatureSettings = FeatureSettings()
    members: Any = None  # set by `_rebuild`
    ensemble: EnsembleSettings = EnsembleSettings()
    resources: ResourceSettings = ResourceSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _features_are_words(self) -> Self:
        if self.corpus.label_features is None:
            return self
        for key, value, mend in (
            ("tree.features", self.tree.features, "tfidf"),
            ("network.attention_start", self.network.attention_start, "random"),
        ):
            if value in ("word_vectors", "features", "names"):
                raise ValueError(
                    f"{key} is {value}, which reads label features as words; those of corpus.label_features have "
                    f"columns of their own: set {key} to {mend}"
                )
        return self

    _given: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def given(self) -> frozenset[str]:
        """Keys of settings that the user gave, in a file or on the command line."""
        return self._given

    def with_given(self, keys: Iterable[str]) -> Self:
        """The same, with the keys of settings that the user gave."""
        self._given = frozenset(keys)
        return self

    @property
    def corpus_directory(self) -> Path:
        """Where the prepared corpus lies."""
        return self.corpora / self.corpus.name

    @property
    def run_directory(self) -> Path:
        """Where the run lies."""
        return self.runs / self.name


def changed(settings: Experiment, key: str, value: Any) -> Experiment:
    """The settings with one of another value.

    Args:
        settings: of the experiment.
        key: of the setting, such as `tree.height`.
        value: valid.
    """

    def within(group: Any, names: list[str]) -> Any:
        name, *rest = names
        return group.model_copy(update={name: within(getattr(group, name), rest) if rest else value})

    found: Experiment = within(settings, key.split("."))
    return found


def adapt(settings: Experiment, documents: int, labels: int) -> tuple[Experiment, list[Choice]]:
    """The settings that the preset `auto` chooses for a corpus, and why; those of another preset as they are.

    Args:
        settings: of the experiment; what the user gave is kept.
        documents: training documents.
        labels: labels with training documents.
    """
    if settings.preset != "auto":
        return settings, []
    choices = choose(CorpusSize(documents, labels, settings.corpus.label_names is not None), settings.given)
    for choice in choices:
        settings = changed(settings, choice.key, choice.value)
    return settings, choices


def register_member(name: str, settings: type[MemberSettings], implementation: str) -> None:
    """Add a kind of ensemble member.

    Modules that call this are named, separated by commas, in the environment variable `AXML_RAY_PLUGINS`, which every
    process of a job needs; a program of one process may also call it before it loads settings.

    Args:
        name: of the kind, as under `members` in a config.
        settings: its settings.
        implementation: `module:Class` of the subclass of `axml_ray.members.member.Member`.
    """
    KINDS[name] = Kind(settings, implementation)
    _rebuild()


def _rebuild() -> None:
    """Let the experiment have a group of settings for every registered kind."""
    model = members_model()
    field = Experiment.model_fields["members"]
    field.annotation, field.default = model, model()
    Experiment.model_rebuild(force=True)


_rebuild()
