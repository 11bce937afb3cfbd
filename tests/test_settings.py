from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from axml_ray.configuration import from_command_line, load, read_yaml
from axml_ray.settings import (
    CorpusSettings,
    ExpectedCounts,
    Experiment,
    LinearSettings,
    SettingsError,
    TrainingSettings,
    TreeSettings,
    absolute,
    at_level,
    fingerprint,
)

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
GROUPS = {
    name: field.annotation
    for name, field in Experiment.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
PACKAGES = "corpus:\n  source: installed_packages\n"


def config(tmp_path: Path, content: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(content, encoding="utf-8")
    return str(path)


def message(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command with these arguments ends with."""
    with pytest.raises(SystemExit) as caught:
        from_command_line("A job.", list(arguments))
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    return err.removeprefix("error: ").strip()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_loads(path: Path) -> None:
    experiment = load(path)
    assert experiment.corpus.name
    assert from_command_line("A job.", ["--config", str(path)]) == experiment


def test_there_are_shipped_configs() -> None:
    assert "quickstart" in [path.stem for path in CONFIGS]


# Wrong settings


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (PACKAGES + "  min_label_cuont: 2", "corpus.min_label_cuont: unknown setting; did you mean 'min_label_count'?"),
        (PACKAGES + "tre: {}", "tre: unknown setting; did you mean 'tree'?"),
        (PACKAGES + "tree: {qqqq: 1}", "tree.qqqq: unknown setting; known here: height, cluster_size, beam"),
        (PACKAGES + "  vocabulary_size: many", "corpus.vocabulary_size: Input should be a valid integer"),
        (PACKAGES + "  vocabulary_size: many", "(given: 'many')"),
        (PACKAGES + "  test_share: 1.5", "corpus.test_share: Input should be less than or equal to 1 (given: 1.5)"),
        (PACKAGES + "  expected: {lables: 5}", "corpus.expected.lables: unknown setting; did you mean 'labels'?"),
        (PACKAGES + "  name: ../up", "corpus.name: String should match pattern"),
        (PACKAGES + "network: {fully_connected: 256}", "network.fully_connected: Input should be a valid list"),
        (PACKAGES + "training: {epochs: []}", "training.epochs: List should have at least 1 item"),
        (PACKAGES + "training: {epochs: [0]}", "training.epochs.0: Input should be greater than or equal to 1"),
        (PACKAGES + "training: {average_after: [-1]}", "training.average_after.0: Input should be greater than"),
        (PACKAGES + "tree: {cluster_size: 12}", "tree.cluster_size is 12; take 8 or 16 (2^c)"),
        (PACKAGES + "linear: {cluster_size: 600}", "linear.cluster_size is 600; take 512 or 1024 (2^c)"),
        (PACKAGES + "tree: {cluster_size: 1}", "tree.cluster_size: Input should be greater than or equal to 2"),
        (
            PACKAGES + "  label_features: f.svm\nnetwork: {attention_start: features}",
            "config.yaml: network.attention_start is features, which reads label features as words",
        ),
        (
            PACKAGES + "  label_features: f.svm\ntree: {features: word_vectors}",
            "set tree.features to tfidf",
        ),
        (PACKAGES + "tree: 16", "tree: expected a group of 'key: value' lines"),
        (PACKAGES + "  train: [a.jsonl]", "corpus.train, .valid and .test: leave them out for installed_packages"),
        ("corpus: {train: [a.jsonl], test_share: 0}", "corpus.test_share is 0 and corpus.test names no file"),
        ("corpus: {test: [a.jsonl]}", "corpus.train: give at least one file for source auto"),
        ("name: x", "corpus.train: give at least one file for source auto"),
        ("- a\n- b", "expected 'key: value' lines, found list"),
        ("just text", "expected 'key: value' lines, found str"),
        (PACKAGES + "training: {epochs: [9]}\ntree: {height: 1}\ntraining: {batch_size: 7}", "duplicate key training"),
        (PACKAGES + "tree: {height: 1, beam: 9, height: 2}", "duplicate key height"),
        ("5: 3", "5: unknown setting; known here: name, seed"),
        ("yes: 3", "True: unknown setting; known here: name, seed"),
        ("_env_file: 3", "_env_file: unknown setting; known here: name, seed"),
        ("sed: 3", "sed: unknown setting; did you mean 'seed'?"),
        (PACKAGES + "seed: -1", "seed: Input should be greater than or equal to 0 (given: -1)"),
        (PACKAGES + "  seed: 4294967296", "corpus.seed: Input should be less than 4294967296"),
        (PACKAGES + "evaluation: {seed: -1}", "evaluation.seed: Input should be greater than or equal to 0"),
        (PACKAGES + "training: {learning_rate: .inf}", "training.learning_rate: Input should be a finite number"),
        (PACKAGES + "linear: {cost: .nan}", "linear.cost: Input should be"),
        (PACKAGES + "resources: {gpus_per_worker: 1.5}", "gpus_per_worker is 1.5; above 1, take a whole number"),
        (
            PACKAGES + "resources: {workers: 2, gpus_per_worker: 0.5}",
            "resources.gpus_per_worker is 0.5, and workers of one tree can't share a GPU; set it to 1",
        ),
        ("name: 2024-31-12", "not valid YAML: month must be in 1..12"),
        ("name: " + 3000 * "[" + 3000 * "]", "not valid YAML: maximum recursion depth"),
        ("corpus: [", "not valid YAML: "),
        ("a: b: c", "not valid YAML: mapping values are not allowed here"),
        ("corpus: \0", "not valid YAML: "),
    ],
)
def test_a_wrong_file_ends_in_one_line_that_names_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, expected: str
) -> None:
    path = config(tmp_path, content)
    said = message(capsys, "--config", path)
    assert said.startswith(f"{path}: ")
    assert expected in said
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert str(caught.value) == said


def test_an_unknown_setting_is_named_before_other_faults(tmp_path: Path) -> None:
    path = config(tmp_path, "corpus: {trian: [a.jsonl], test: [b.jsonl], max_tokens: x}")
    with pytest.raises(SettingsError, match=r"corpus\.trian: unknown setting; did you mean 'train'\?"):
        load(path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--training.batch_sze", "6"], "--training.batch_sze: unknown setting; did you mean '--training.batch_size'?"),
        (["--training.batch_sze=6"], "--training.batch_sze: unknown setting; did you mean '--training.batch_size'?"),
        (["--training.epoch", "6"], "--training.epoch: unknown setting; did you mean '--training.epochs'?"),
        (["--zzz", "6"], "--zzz: unknown setting; --help lists all"),
        (["configs/a.yaml"], "configs/a.yaml: belongs to no flag"),
        (["--training.epochs", "3", "4"], "4: belongs to no flag; write a list as 3,4"),
        (["--training.batch_size"], "argument --training.batch_size: expected one argument"),
        (["--config"], "argument --config: expected one argument"),
        (["--training.batch_size", "x"], "training.batch_size: Input should be a valid integer"),
        (["--training.batch_size=0"], "training.batch_size: Input should be greater than or equal to 1 (given: '0')"),
        (["--training.epochs", "[2,x]"], "training.epochs.1: Input should be a valid integer"),
        (["--tree.cluster_size", "24"], "tree.cluster_size is 24; take 16 or 32 (2^c)"),
        (["--corpus.expected.labels", "0"], "corpus.expected.labels: Input should be greater than or equal to 1"),
        (["--corpus.source", "xls"], "corpus.source: Input should be 'auto', 'json_lines'"),
    ],
)
def test_a_wrong_flag_ends_in_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    said = message(capsys, "--config", config(tmp_path, PACKAGES), *arguments)
    assert said.startswith("command line: ")
    assert expected in said


def test_a_missing_config_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.yaml"
    said = message(capsys, f"--config={path}")
    assert said == f"{path}: cannot be read (No such file or directory); --config takes a YAML file"
    assert f"{tmp_path}: cannot be read (Is a directory)" in message(capsys, "--config", str(tmp_path))


def test_without_config_or_files_the_missing_keys_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert message(capsys).startswith("corpus.train: give at least one file")
    with pytest.raises(SettingsError, match=r"corpus\.train: give"):
        load()


def test_mappings_may_be_merged(tmp_path: Path) -> None:
    path = config(tmp_path, PACKAGES + "tree: &b {height: 2, <<: {beam: 7, height: 1}}\n")
    assert (load(path).tree.height, load(path).tree.beam) == (2, 7)


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    assert read_yaml(config(tmp_path, "# nothing yet\n")) == {}


# Where a value comes from


def test_the_command_line_wins_over_the_file_over_the_default(tmp_path: Path) -> None:
    path = config(tmp_path, PACKAGES + "training: {batch_size: 7, clip: 2.0, epochs: [3]}\nname: from-file\n")
    experiment = from_command_line(
        "A job.", ["--training.batch_size", "9", "--config", path, "--training.epochs", "[6,4]", "--seed=5"]
    )
    assert experiment.training.batch_size == 9
    assert experiment.training.clip == 2.0
    assert experiment.training.patience == TrainingSettings().patience
    assert experiment.training.epochs == (6, 4)
    assert (experiment.name, experiment.seed) == ("from-file", 5)
    assert experiment.corpus.source == "installed_packages"


@pytest.mark.parametrize("words", [["[6,4]"], ["6,4"], ["[6, 4]"]])
def test_a_value_per_level(tmp_path: Path, words: list[str]) -> None:
    path = config(tmp_path, PACKAGES)
    assert from_command_line("A job.", ["--config", path, "--training.epochs", *words]).training.epochs == (6, 4)


def test_letters_of_the_first_words_need_first_words(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"linear\.lead_letters: it is of the first linear\.lead_words.*set both"):
        load(config(tmp_path, PACKAGES + "linear: {weight: 0.5, lead_letters: 4}"))
    with pytest.raises(SettingsError, match=r"linear\.learned_join: it joins linear classifiers.*set both"):
        load(config(tmp_path, PACKAGES + "linear: {learned_join: true}"))


def test_a_flag_of_null_is_none(tmp_path: Path) -> None:
    path = config(tmp_path, PACKAGES + "linear: {weight: 0.5, prefix_letters: 6}")
    read = from_command_line("A job.", ["--config", path, "--linear.cluster_size", "null"])
    assert read.linear.cluster_size is None and read.linear.prefix_letters == 6


def test_flags_alone_are_enough(tmp_path: Path) -> None:
    flags = ["--corpus.train", f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl", "--corpus.test", f"{tmp_path}/c.jsonl"]
    experiment = from_command_line("A job.", [*flags, "--network.train_embeddings", "false"])
    assert experiment.corpus.train == (tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert experiment.corpus.test == (tmp_path / "c.jsonl",)
    assert experiment.network.train_embeddings is False


def test_overrides_go_into_their_groups(tmp_path: Path) -> None:
    path = config(tmp_path, PACKAGES + "tree: {height: 2, beam: 10}\n")
    experiment = load(path, tree={"beam": 20}, name="other")
    assert experiment.tree == TreeSettings(height=2, beam=20)
    assert experiment.name == "other"


def test_the_environment_changes_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAME", "SEED", "CORPUS", "TREE"):
        monkeypatch.setenv(name, "7")
    assert load(corpus={"source": "installed_packages"}).seed == 0


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "4000")
    with pytest.raises(SystemExit) as caught:
        from_command_line("Train something.", ["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "Train something." in shown
    assert "--config FILE" in shown
    fields: dict[str, Any] = {name: field for name, field in Experiment.model_fields.items() if name not in GROUPS}
    for group, model in GROUPS.items():
        fields |= {f"{group}.{name}": field for name, field in model.model_fields.items()}
    expected = fields.pop("corpus.expected")  # a group in a group
    assert expected.description in shown
    fields |= {f"corpus.expected.{name}": field for name, field in ExpectedCounts.model_fields.items()}
    assert len(fields) > 40
    for name, field in fields.items():
        assert f"--{name} " in shown, name
        assert field.description, name
        assert " ".join(field.description.split()) in " ".join(shown.split()), name


# Paths, fingerprints, immutability


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AXML_RAY_HOME", raising=False)
    corpus = {"train": ["data/*.jsonl"], "test": ["/abs/../t.jsonl"], "word_vectors": "glove/g.npy"}
    experiment = load(corpus=corpus)
    assert experiment.runs == tmp_path / "runs"
    assert experiment.corpora == tmp_path / "corpora"
    assert experiment.corpus.train == (tmp_path / "data/*.jsonl",)
    assert experiment.corpus.test == (Path("/t.jsonl"),)
    assert experiment.corpus.word_vectors_path == tmp_path / "glove/g.npy"
    assert experiment.run_directory == tmp_path / "runs/experiment"
    assert experiment.corpus_directory == tmp_path / "corpora/corpus"
    assert absolute("~/x") == Path.home() / "x"

    home = tmp_path / "home"
    monkeypatch.setenv("AXML_RAY_HOME", str(home))
    experiment = load(corpus=corpus, runs="elsewhere")
    assert experiment.runs == home / "elsewhere"
    assert experiment.corpora == home / "corpora"
    assert experiment.corpus.train == (home / "data/*.jsonl",)


@pytest.mark.parametrize("word", ["train", "random"])
def test_kinds_of_word_vectors_are_no_paths(word: str) -> None:
    assert CorpusSettings(source="installed_packages", word_vectors=word).word_vectors_path is None


def other(name: str, value: Any) -> Any:
    """A value of the same kind that isn't `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, tuple) and value:
        return (*value, 1)
    plain = {"threads": 1, "max_train_documents": 1, "max_test_documents": 1, "max_terms": 1, "title_field": "title"}
    return plain.get(name, (Path("/new"),) if value == () else Path("/new"))


def test_the_fingerprint_changes_with_any_field() -> None:
    linear = {"weight": 0.5}  # of no weight, the others' values are of no effect
    base = load(corpus={"source": "installed_packages"}, linear=linear)
    seen = {fingerprint(base)}
    count = 1
    for group in (base, *(getattr(base, name) for name in GROUPS)):
        for name in type(group).model_fields:
            if name in ("expected", "block_bytes") or (name in GROUPS and group is base):
                continue
            changed = group.model_copy(update={name: other(name, getattr(group, name))})
            whole = changed if group is base else base.model_copy(update={_name_of(base, group): changed})
            seen.add(fingerprint(whole))
            count += 1
    assert len(seen) == count
    expected = load(corpus={"source": "installed_packages", "expected": {"labels": 7}}, linear=linear)
    assert expected.corpus.expected.labels == 7
    assert fingerprint(expected) == fingerprint(base)  # no result depends on it
    assert fingerprint(base) == fingerprint(load(corpus={"source": "installed_packages"}, linear=linear))
    assert fingerprint(base, 1) != fingerprint(base, 2)
    assert len(fingerprint(base)) == 12
    plain = load(corpus={"source": "installed_packages"})
    assert fingerprint(plain) == fingerprint(plain.model_copy(update={"linear": LinearSettings(cost=3)}))


def _name_of(base: Experiment, group: Any) -> str:
    return next(name for name in GROUPS if getattr(base, name) is group)


def test_settings_are_frozen() -> None:
    experiment = load(corpus={"source": "installed_packages"})
    for model in (experiment, *(getattr(experiment, name) for name in GROUPS)):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(model, next(iter(type(model).model_fields)), "x")


def test_the_last_value_serves_all_deeper_levels() -> None:
    assert [at_level((6, 4, 2), level) for level in (1, 2, 3, 4, 9)] == [6, 4, 2, 2, 2]
