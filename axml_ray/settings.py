"""What an experiment is: typed, validated settings, from a YAML file and the command line.

- One frozen model per room of the house; a key that no model knows is an error, so a misspelling never passes.
- The command line overrides the file, the file overrides the defaults: `--training.batch_size 64`.
- Every path is absolute once loaded: Ray changes the working directory of its workers. A relative path is
  taken from `$AXML_RAY_HOME` (set by `make cluster`, so that a submitted job, which runs in a snapshot of the
  working directory, still writes where its user looks), else from the current directory.
- `fingerprint` names what a result depends on; resuming compares fingerprints, never times of files.
"""

import argparse
import difflib
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

HOME_VARIABLE = "AXML_RAY_HOME"


class SettingsError(ValueError):
    """A setting, or an input that a setting names, is wrong; the message names it and the mend."""


def absolute(path: str | Path) -> Path:
    """`path` made absolute from `$AXML_RAY_HOME`, else from the current directory; globs are kept."""
    base = Path(os.environ.get(HOME_VARIABLE) or Path.cwd())
    return Path(os.path.normpath(base / Path(path).expanduser()))


AbsolutePath = Annotated[Path, AfterValidator(absolute)]
Precision = Literal["auto", "bfloat16", "float32"]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class Settings(BaseModel):
    """Base of every group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class CorpusSettings(Settings):
    """Which texts, and how they become integers."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "corpus"
    """Directory of the prepared corpus below `corpora`."""
    source: Literal["json_lines", "installed_packages"] = "json_lines"
    """JSON lines, or the docstrings of the Python packages installed beside this one."""
    train: tuple[AbsolutePath, ...] = ()
    """JSON-lines files, directories or globs of the training documents."""
    valid: tuple[AbsolutePath, ...] = ()
    """The same for validation; where none is given, `valid_documents` are drawn from train."""
    test: tuple[AbsolutePath, ...] = ()
    """The same for the test split, used for the final evaluation only."""
    valid_documents: Positive = 200
    """Documents drawn from train for validation (paper's program: 200, or 4,000 for its large corpora)."""
    test_share: Share = 0.1
    """Share of `installed_packages` that becomes the test split, by a hash of the text."""
    max_train_documents: Positive | None = None
    """Train on that many documents only, drawn by a hash of the text."""
    max_test_documents: Positive | None = None
    """Test on that many documents only, drawn by a hash of the text."""
    drop_duplicates: bool = False
    """Keep each text once over all splits; a test text that is also in train is then dropped from train."""
    min_label_count: Positive = 1
    """Labels of fewer documents, over all splits, are dropped."""
    max_rejected_share: Share = 0.0
    """Bad records are written to `rejected.jsonl`; a larger share of them than this is an error."""
    label_names: AbsolutePath | None = None
    """Tab-separated file of label and readable name."""
    max_tokens: Positive = 500
    """Texts are cut after that many words."""
    vocabulary_size: Annotated[int, Field(ge=3)] = 500_000
    """Most words of the vocabulary, padding and unknown included; ranked by document frequency."""
    min_document_frequency: Positive = 1
    """Words of fewer training documents become unknown, so that training meets the unknown word too."""
    word_vectors: str = "train"
    """`train` (skip-gram on the training texts), `random`, or an `.npy` file with `vocab.txt` beside it."""
    word_dimension: Positive = 300
    """Dimension of `train` and `random` word vectors."""
    word_vector_epochs: Positive = 5
    """Passes over the training texts for `train`."""
    seed: int = 0
    """Draws validation documents and random word vectors."""

    @model_validator(mode="after")
    def _source_has_files(self) -> Self:
        if self.source == "json_lines" and not (self.train and self.test):
            raise ValueError("corpus.train and corpus.test: give at least one file each for json_lines")
        if self.source == "installed_packages" and (self.train or self.valid or self.test):
            raise ValueError("corpus.train, .valid and .test: leave them out for installed_packages")
        return self

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

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        if self.cluster_size & (self.cluster_size - 1):
            below = 1 << (self.cluster_size.bit_length() - 1)
            raise ValueError(f"tree.cluster_size is {self.cluster_size}; take {below} or {2 * below} (2^c)")
        return self


class NetworkSettings(Settings):
    """The attention-aware network of one level (paper, "Attention-Aware Deep Model")."""

    hidden: Positive = 256
    """N̂: units of the LSTM in each direction."""
    fully_connected: Annotated[tuple[Positive, ...], Field(min_length=1)] = (256,)
    """Units of the fully connected layers, one or two."""
    embedding_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Dropout after the embedding."""
    encoder_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout after the BiLSTM."""
    evidence: bool = False
    """Not in the paper: adds to a label's logit, times one learned weight, how well its attention vector matches the
    text (the log of the mean of the exponentiated attention scores). Learns faster, above all from few documents."""
    attention_start: Literal["random", "features"] = "random"
    """Where attention vectors begin: at random, as in the paper, or at the words of their label's TF-IDF centroid."""
    train_embeddings: bool = True
    """False freezes the word vectors (as the paper does for EUR-Lex and Wiki10-31K)."""


class TrainingSettings(Settings):
    """How a level is trained. A value per level may be given; the last one serves all deeper levels."""

    epochs: Annotated[tuple[Positive, ...], Field(min_length=1)] = (10,)
    """E: most passes over the training documents, per level."""
    average_after: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (2,)
    """Epochs before stochastic weight averaging begins, per level."""
    averaging: bool = True
    """Stochastic weight averaging; False keeps the last scored weights' best."""
    batch_size: Positive = 40
    """B: documents a step, over all workers."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Of Adam."""
    clip: Annotated[float, Field(gt=0)] = 5.0
    """Gradients are clipped at this times the largest of the last five norms."""
    score_every: Positive = 100
    """Steps between snapshots of the average, each scored on the validation split."""
    patience: Positive = 50
    """Scorings without a gain in nDCG@5 after which a level stops."""
    precision: Precision = "auto"
    """Of matrix products; auto takes bfloat16 where the hardware computes it. Master weights are float32."""


class EnsembleSettings(Settings):
    """Trees and how their votes are joined."""

    trees: Positive = 3
    """Label trees, each clustered and trained with a seed of its own."""
    top_labels: Annotated[int, Field(ge=5)] = 100
    """Best labels of each tree whose scores are summed; a label that a tree left out counts 0 for it."""


class ResourceSettings(Settings):
    """What is asked of the Ray cluster."""

    workers: Positive = 1
    """Ray Train workers of each tree."""
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    """CPUs reserved for a worker; below 1, several trees share a core."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs reserved for a worker; 0 trains on the CPU."""
    threads: Positive | None = None
    """Torch threads of a worker; by default `cpus_per_worker`, at least 1."""
    predictors: Positive = 1
    """Model actors that score the test split."""
    max_failures: Annotated[int, Field(ge=0)] = 2
    """Times a tree's worker group is started again after a worker died."""

    @property
    def threads_of_worker(self) -> int:
        """Torch threads of a worker."""
        return self.threads or max(1, int(self.cpus_per_worker))


class EvaluationSettings(Settings):
    """The constants of propensity-scored metrics."""

    propensity_a: Annotated[float, Field(gt=0)] = 0.55
    """A; 0.6 for Amazon-670K and Amazon-3M, 0.5 for Wiki-500K."""
    propensity_b: Annotated[float, Field(gt=0)] = 1.5
    """B; 2.6 for Amazon-670K and Amazon-3M, 0.4 for Wiki-500K."""


class Experiment(BaseSettings):
    """A corpus, a tree, a network, its training and its evaluation."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, env_prefix="AXML_RAY_UNUSED_"
    )

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "experiment"
    """Directory of the run below `runs`."""
    seed: int = 0
    """Seed of the first tree; the others count on from it."""
    runs: AbsolutePath = Field(default=Path("runs"), validate_default=True)
    """Directory of all runs."""
    corpora: AbsolutePath = Field(default=Path("corpora"), validate_default=True)
    """Directory of all prepared corpora."""
    corpus: CorpusSettings = CorpusSettings.model_construct()
    tree: TreeSettings = TreeSettings()
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    ensemble: EnsembleSettings = EnsembleSettings()
    resources: ResourceSettings = ResourceSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @property
    def corpus_directory(self) -> Path:
        """Where the prepared corpus lies."""
        return self.corpora / self.corpus.name

    @property
    def run_directory(self) -> Path:
        """Where the run lies."""
        return self.runs / self.name


def fingerprint(*parts: Any) -> str:
    """Twelve hexadecimal digits that change with any of `parts` (settings models or JSON values)."""
    plain = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def at_level(values: tuple[int, ...], level: int) -> int:
    """The value of `values` for `level` (from 1); the last one serves all deeper levels."""
    return values[min(level, len(values)) - 1]


def load(config: str | Path | None = None, **overrides: Any) -> Experiment:
    """An experiment from the YAML file `config` and keyword overrides (groups as dictionaries).

    Raises:
        SettingsError: the file is missing or not YAML, or a setting is unknown or has a wrong value.
    """
    return _build(read_yaml(config) if config else {}, config, overrides=overrides)


def from_command_line(description: str, arguments: list[str] | None = None) -> Experiment:
    """An experiment from `--config FILE` and one flag a setting; exits 2 with one message where that fails."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    config, rest = _take_config(arguments)
    try:
        return _build(read_yaml(config) if config else {}, config, cli=rest, description=description)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        SettingsError: the file is missing, not YAML, or not a mapping.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); --config takes a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected 'key: value' lines, found {type(content).__name__}")
    return content


class _Parser(argparse.ArgumentParser):
    """A parser that names the wrong flag instead of printing its whole usage, and takes no abbreviations."""

    def __init__(self, description: str):
        super().__init__(description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        wrong = message.removeprefix("unrecognized arguments: ")
        if wrong != message:
            flag = wrong.split()[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
            mend = f"did you mean '{near[0]}'?" if near else "--help lists all"
            message = f"{flag}: unknown setting; {mend}"
        raise SettingsError(f"command line: {message}")


def _take_config(arguments: list[str]) -> tuple[str | None, list[str]]:
    config, rest, position = None, [], 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--config" and position + 1 < len(arguments):
            config, position = arguments[position + 1], position + 1
        elif word.startswith("--config="):
            config = word.partition("=")[2]
        else:
            rest.append(word)
        position += 1
    return config, rest


def _build(
    content: dict[str, Any],
    config: str | Path | None,
    *,
    cli: list[str] | None = None,
    description: str = "",
    overrides: dict[str, Any] | None = None,
) -> Experiment:
    def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
        both = {key: merge(base[key], over[key]) for key in base.keys() & over.keys() if isinstance(over[key], dict)}
        return {**base, **over, **both}

    for key in ("corpus", "tree", "network", "training", "ensemble", "resources", "evaluation"):
        if not isinstance(content.get(key, {}), dict):
            raise SettingsError(f"{config}: {key}: expected a group of 'key: value' lines")
    values = merge(content, overrides or {})
    source: Any = None
    if cli is not None:
        parser = _Parser(description)
        parser.add_argument("--config", metavar="FILE", help="YAML file of settings; the flags below override it")
        source = CliSettingsSource(
            Experiment, cli_parse_args=cli, root_parser=parser, cli_avoid_json=True, cli_hide_none_type=True
        )
    try:
        return Experiment(**values, **({"_cli_settings_source": source} if source else {}))
    except ValidationError as error:
        raise SettingsError(_explain(error, config, {word.partition("=")[0] for word in cli or ()})) from None


def _explain(error: ValidationError, config: str | Path | None, flags: set[str]) -> str:
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ").replace("tuple", "list").replace("Tuple", "List")
    whole = message.startswith(where + ".")
    key = message.split()[0].rstrip(":") if whole else ".".join(str(part) for part in problem["loc"][:2])
    place = "command line: " if f"--{key}" in flags else f"{config}: " if config else ""
    if problem["type"] == "extra_forbidden":
        group: Any = Experiment
        for part in problem["loc"][:-1]:
            group = group.model_fields[str(part)].annotation
        near = difflib.get_close_matches(str(problem["loc"][-1]), group.model_fields, n=1)
        mend = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(group.model_fields)}"
        return f"{place}{where}: unknown setting; {mend}"
    given = "" if isinstance(problem["input"], dict | BaseModel) else f" (given: {problem['input']!r})"
    return place + message if whole else f"{place}{where}: {message}{given}"
