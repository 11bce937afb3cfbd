import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from axml_ray.cli.parser import from_command_line
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute
from axml_ray.settings import (
    CorpusSettings,
    ExpectedCounts,
    Experiment,
    ResourceSettings,
    TrainingSettings,
    TreeSettings,
    at_level,
    fingerprint,
)
from axml_ray.settings.configuration import load, read_yaml
from axml_ray.settings.members import KINDS

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
GROUPS = {
    name: field.annotation
    for name, field in Experiment.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
NESTED: dict[str, type[BaseModel]] = {
    "corpus.expected": ExpectedCounts,
    **{f"members.{name}": kind.settings for name, kind in KINDS.items()},
}
"""Groups in groups."""
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
        (PACKAGES + "  max_tokens: many", "corpus.max_tokens: expected a whole number"),
        (PACKAGES + "  max_tokens: many", "(given: 'many')"),
        (PACKAGES + "  test_share: 1.5", "corpus.test_share: expected less than 1 (given: 1.5)"),
        (PACKAGES + "  expected: {lables: 5}", "corpus.expected.lables: unknown setting; did you mean 'labels'?"),
        (PACKAGES + "  name: ../up", "corpus.name: expected letters"),
        (PACKAGES + "network: {fully_connected: 256}", "network.fully_connected: expected a list"),
        (PACKAGES + "training: {epochs: []}", "training.epochs: List should have at least 1 item"),
        (PACKAGES + "training: {epochs: [0]}", "training.epochs.0: expected at least 1"),
        (PACKAGES + "training: {average_after: [-1]}", "training.average_after.0: expected at least 0"),
        (PACKAGES + "tree: {cluster_size: 12}", "tree.cluster_size is 12; take 8 or 16 (2^c)"),
        (PACKAGES + "members: {linear_tree: {cluster_size: 600}}", "linear_tree.cluster_size is 600; take 512 or 1024"),
        (PACKAGES + "members: {knm: {weight: 1}}", "members.knm: unknown setting; did you mean 'knn'?"),
        (
            PACKAGES + "members: {knn: {neigbours: 1}}",
            "members.knn.neigbours: unknown setting; did you mean 'neighbours'?",
        ),
        (PACKAGES + "members: {knn: {weight: 2}}", "members.knn.weight: expected at most 1"),
        (
            PACKAGES + "members: {network_tree: {weight: 0}}",
            "members: every weight is 0; give at least one kind a weight",
        ),
        (
            PACKAGES + "ensemble: {combiner: median}",
            "ensemble.combiner: expected 'mean', 'calibrated' or 'weighted'",
        ),
        (
            PACKAGES + "features: {lead_letters: 4}",
            "features.lead_letters: it applies to the first features.lead_words",
        ),
        (PACKAGES + "tree: {cluster_size: 1}", "tree.cluster_size: expected at least 2"),
        (PACKAGES + "tree: 16", "tree: expected a group of 'key: value' lines"),
        (PACKAGES + "  train: [a.jsonl]", "corpus.train, .valid and .test: leave them out for installed_packages"),
        ("corpus: {test: [a.jsonl]}", "corpus.train: names no file; give "),
        ("corpus: {train: [2024-01-31]}", "corpus.train.0: expected a path; put it in quotes"),
        (PACKAGES + "runs: 5", "runs: expected a path; put it in quotes"),
        ("train: [a.jsonl]", "train: is a setting of the group corpus; indent it below 'corpus:'"),
        ("name: x", "corpus.train: names no file; give "),
        ("- a\n- b", "expected 'key: value' lines, found list"),
        ("just text", "expected 'key: value' lines, found str"),
        (PACKAGES + "training: {epochs: [9]}\ntree: {height: 1}\ntraining: {batch_size: 7}", "duplicate key training"),
        (PACKAGES + "tree: {height: 1, beam: 9, height: 2}", "duplicate key height"),
        ("5: 3", "5: unknown setting; known here: preset, name, seed"),
        ("yes: 3", "True: unknown setting; known here: preset, name, seed"),
        ("_env_file: 3", "_env_file: unknown setting; known here: preset, name, seed"),
        ("sed: 3", "sed: unknown setting; did you mean 'seed'?"),
        (PACKAGES + "seed: -1", "seed: expected at least 0 (given: -1)"),
        (PACKAGES + "seed: 4294967296", "seed: expected less than 4294967296"),
        (PACKAGES + "training: {learning_rate: .inf}", "training.learning_rate: expected a finite number"),
        (PACKAGES + "members: {linear_tree: {cost: .nan}}", "members.linear_tree.cost: expected"),
        (PACKAGES + "resources: {gpus_per_worker: 1.5}", "gpus_per_worker is 1.5; above 1, take a whole number"),
        (PACKAGES + "resources: {gpus_per_predictor: 2.5}", "gpus_per_predictor is 2.5; above 1, take a whole number"),
        (
            PACKAGES + "resources: {workers: 2, gpus_per_worker: 0.5}",
            "resources.gpus_per_worker is 0.5, and workers of one tree can't share a GPU; set it to 1",
        ),
        (PACKAGES + "resources: {workers: 0}", "resources.workers: "),
        (PACKAGES + "resources: {workers: [2, 1]}", "resources.workers: "),
        (PACKAGES + "resources: {workers: [1, 2, 3]}", "resources.workers: "),
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
        (["--tree", "6"], "--tree: unknown setting; did you mean '--tree.height'?"),
        (["configs/a.yaml"], "configs/a.yaml: belongs to no flag"),
        (["--training.epochs", "3", "4"], "4: belongs to no flag; write a list as 3,4"),
        (["--training.batch_size"], "argument --training.batch_size: expected one argument"),
        (["--corpus.train", ""], "corpus.train.0: expected a path"),
        (["--corpus.test", "a.jsonl,"], "corpus.test.1: expected a path"),
        (["--corpus.label_names="], "corpus.label_names: expected a path"),
        (["--corpus.word_vectors", " "], "corpus.word_vectors"),
        (["--runs", ""], "runs: expected a path"),
        (["--config"], "argument --config: expected one argument"),
        (["--training.batch_size", "x"], "training.batch_size: expected a whole number"),
        (["--training.batch_size=0"], "training.batch_size: expected at least 1 (given: '0')"),
        (["--training.epochs", "[2,x]"], "training.epochs.1: expected a whole number"),
        (["--tree.cluster_size", "24"], "tree.cluster_size is 24; take 16 or 32 (2^c)"),
        (["--corpus.expected.labels", "0"], "corpus.expected.labels: expected at least 1"),
        (["--corpus.source", "xls"], "corpus.source: expected 'auto', 'json_lines'"),
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
    assert said.startswith(f"{path}: there is no such file or config; ")
    assert f"{tmp_path}: cannot be read (Is a directory)" in message(capsys, "--config", str(tmp_path))


def test_without_config_or_files_the_missing_keys_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert message(capsys).startswith("corpus.train: names no file")
    with pytest.raises(SettingsError, match=r"corpus\.train: names"):
        load()


def test_mappings_may_be_merged(tmp_path: Path) -> None:
    path = config(tmp_path, PACKAGES + "tree: &b {height: 2, <<: {beam: 7, height: 1}}\n")
    assert (load(path).tree.height, load(path).tree.beam) == (2, 7)


@pytest.mark.parametrize("group", ["tree:", "tree:\nmembers: {knn: }"])
def test_a_group_without_keys_takes_those_of_flags(tmp_path: Path, group: str) -> None:
    """All of its keys may be commented out."""
    path = config(tmp_path, PACKAGES + group + "\n")
    flags = ["--tree.height", "1", "--members.knn.weight", "0.5"]
    settings = from_command_line("A job.", ["--config", path, *flags])
    assert settings.tree.height == 1 and settings.members.knn.weight == 0.5


def test_a_home_of_nobody_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no-such-user"):
        load(config(tmp_path, PACKAGES + "runs: ~no-such-user/x\n"))


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    assert read_yaml(config(tmp_path, "# nothing yet\n")) == {}


# Where a value comes from


@pytest.mark.parametrize(("words", "range_"), [("3", (3, 3)), ("1,4", (1, 4)), ("[2,2]", (2, 2))])
def test_workers_are_a_number_or_a_range(tmp_path: Path, words: str, range_: tuple[int, int]) -> None:
    path = config(tmp_path, PACKAGES)
    resources = from_command_line("A job.", ["--config", path, "--resources.workers", words]).resources
    assert (resources.min_workers, resources.max_workers) == range_
    assert ResourceSettings.model_validate(resources.model_dump(mode="json")) == resources


def test_the_command_line_wins_over_the_file_over_the_default(tmp_path: Path) -> None:
    path = config(tmp_path, PACKAGES + "training: {batch_size: 7, patience_steps: 20, epochs: [3]}\nname: from-file\n")
    experiment = from_command_line(
        "A job.", ["--training.batch_size", "9", "--config", path, "--training.epochs", "[6,4]", "--seed=5"]
    )
    assert experiment.training.batch_size == 9
    assert experiment.training.patience_steps == 20
    assert experiment.training.learning_rate == TrainingSettings().learning_rate
    assert experiment.training.epochs == (6, 4)
    assert (experiment.name, experiment.seed) == ("from-file", 5)
    assert experiment.corpus.source == "installed_packages"


@pytest.mark.parametrize("words", [["[6,4]"], ["6,4"], ["[6, 4]"]])
def test_a_value_per_level(tmp_path: Path, words: list[str]) -> None:
    path = config(tmp_path, PACKAGES)
    assert from_command_line("A job.", ["--config", path, "--training.epochs", *words]).training.epochs == (6, 4)


@pytest.mark.parametrize("flag", ["--training.batch_size", "--training.batch-size"])
def test_hyphens_serve_as_underscores(tmp_path: Path, flag: str) -> None:
    for words in ([flag, "9"], [f"{flag}=9"]):
        assert from_command_line("A job.", ["--config", config(tmp_path, PACKAGES), *words]).training.batch_size == 9


def test_a_repeated_flag_is_a_longer_list_or_another_value() -> None:
    flags = ["--corpus.train=/a", "--corpus.train", '["/b,c", "/d"]', "--seed", "1", "--seed", "2"]
    read = from_command_line("A job.", [*flags, "--tree.height=3", "--tree.height=2"])
    assert read.corpus.train == (Path("/a"), Path("/b,c"), Path("/d"))
    assert (read.seed, read.tree.height) == (2, 2)
    globs = from_command_line("A job.", ["--corpus.train=/p-[0-2],/[ab]*", "--corpus.test=[/c, /d]"]).corpus
    assert globs.train == (Path("/p-[0-2]"), Path("/[ab]*")) and globs.test == (Path("/c"), Path("/d"))


def test_a_flag_of_null_is_none(tmp_path: Path) -> None:
    path = config(tmp_path, PACKAGES + "members: {linear_tree: {weight: 0.5}}\nfeatures: {prefix_letters: 6}")
    read = from_command_line("A job.", ["--config", path, "--members.linear_tree.cluster_size", "null"])
    assert read.members.linear_tree.cluster_size is None and read.features.prefix_letters == 6
    assert read.members.linear_tree.weight == 0.5


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
    assert "--config CONFIG" in shown
    fields: dict[str, Any] = {name: field for name, field in Experiment.model_fields.items() if name not in GROUPS}
    for group, model in GROUPS.items():
        fields |= {f"{group}.{name}": field for name, field in model.model_fields.items()}
    for name, model in NESTED.items():
        assert " ".join(fields.pop(name).description.split()) in " ".join(shown.split()), name
        fields |= {f"{name}.{field}": about for field, about in model.model_fields.items()}
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

    monkeypatch.setenv("AXML_RAY_HOME", ".")
    assert load(corpus=corpus).runs == tmp_path / "runs"
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
        return (*value[1:], 1.25)
    plain = {"max_train_documents": 1, "title_field": "title"}
    return plain.get(name, (Path("/new"),) if value == () else Path("/new"))


def test_the_fingerprint_changes_with_any_field() -> None:
    base = load(corpus={"source": "installed_packages"})
    seen = {fingerprint(base)}
    count = 1
    for path, group in groups_of(base):
        for name, value in group:
            if isinstance(value, BaseModel):
                continue
            changed = group.model_copy(update={name: other(name, value)})
            seen.add(fingerprint(replaced(base, path, changed)))
            count += 1
    assert len(seen) == count > 50
    expected = load(corpus={"source": "installed_packages", "expected": {"labels": 7}})
    assert expected.corpus.expected.labels == 7
    assert fingerprint(expected) == fingerprint(base)  # no result depends on it
    assert fingerprint(base) == fingerprint(load(corpus={"source": "installed_packages"}))
    assert fingerprint(base, 1) != fingerprint(base, 2)
    assert len(fingerprint(base)) == 12


def groups_of(base: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], BaseModel]]:
    """Every group of settings but `expected`, and where it is."""
    yield path, base
    for name, value in base:
        if isinstance(value, BaseModel) and name != "expected":
            yield from groups_of(value, (*path, name))


def replaced(base: BaseModel, path: tuple[str, ...], group: BaseModel) -> BaseModel:
    if not path:
        return group
    return base.model_copy(update={path[0]: replaced(getattr(base, path[0]), path[1:], group)})


@pytest.mark.processes
def test_a_kind_of_member_can_be_registered() -> None:
    """In another process, since the registry is the process's own."""
    code = """
        import most_frequent
        from axml_ray.settings.configuration import load
        members = load(corpus={"source": "installed_packages"}, members={"most_frequent": {"weight": 0.5}}).members
        assert list(members.chosen) == ["network_tree", "most_frequent"]
        assert members.most_frequent.power == 1.0
    """
    room = Path(__file__).parents[1] / "members"
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=room)


def test_settings_are_frozen() -> None:
    experiment = load(corpus={"source": "installed_packages"})
    for _, model in groups_of(experiment):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(model, next(iter(type(model).model_fields)), "x")


def test_the_last_value_serves_all_deeper_levels() -> None:
    assert [at_level((6, 4, 2), level) for level in (1, 2, 3, 4, 9)] == [6, 4, 2, 2, 2]


def test_one_file_needs_no_list(tmp_path: Path) -> None:
    path = config(tmp_path, "corpus: {train: a.jsonl, test: [b.jsonl, c.jsonl]}")
    corpus = load(path).corpus
    assert [len(files) for files in (corpus.train, corpus.valid, corpus.test)] == [1, 0, 2]
    assert load(corpus={"train": "a.jsonl"}).corpus.train == corpus.train
