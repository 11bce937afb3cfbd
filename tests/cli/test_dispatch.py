"""The `axml-ray` command: which command it runs, its help, and what it says of a wrong word."""

import sys
from importlib import import_module

import pytest

from axml_ray.cli import demo, dispatch, train
from axml_ray.cli.console import Command
from axml_ray.core.errors import SettingsError
from axml_ray.settings.configuration import SHIPPED, find_config, load


@pytest.mark.parametrize("name", dispatch.COMMANDS)
def test_every_command_is_a_command(name: str) -> None:
    assert isinstance(import_module(dispatch.COMMANDS[name][0]).main, Command)


def test_the_words_after_a_command_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["axml-ray"])
    monkeypatch.setattr(train, "main", lambda: given.append(sys.argv))
    dispatch.main(["train", "--config", "quickstart", "--help"])
    assert given == [["axml-ray train", "--config", "quickstart", "--help"]]


@pytest.mark.parametrize(
    ("words", "code", "stream", "says"),
    [
        ([], 2, "out", "usage: axml-ray"),
        (["--help"], 0, "out", "  doctor "),
        (["help"], 0, "out", "  doctor "),
        (["help", "plan"], 0, "out", "usage: axml-ray plan"),
        (["--version"], 0, "out", "axml-ray 0."),
        (["--hlep"], 2, "err", "error: "),
        (["trian"], 2, "err", "error: command line: trian: unknown command; did you mean 'train'?"),
        (["x"], 2, "err", "error: command line: x: unknown command; there are demo, prepare"),
    ],
)
def test_help_and_wrong_words(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, stream: str, says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        dispatch.main(words)
    said = capsys.readouterr()
    assert ended.value.code == code and says in getattr(said, stream)


def test_the_demo_is_the_training_of_quickstart() -> None:
    [settings] = demo.main.parse(["--training.epochs", "1"])
    assert settings.name == "quickstart" and settings.training.epochs == (1,)
    assert settings.corpus == load("quickstart").corpus
    [other] = demo.main.parse(["--config", "docstrings"])
    assert other.name == "docstrings"


def test_a_file_comes_before_a_config_of_the_package(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("quickstart") == SHIPPED / "quickstart.yaml"
    (tmp_path / "quickstart").mkdir()  # a directory of that name is no config
    assert find_config("quickstart") == SHIPPED / "quickstart.yaml"
    (tmp_path / "docstrings").write_text("name: mine\ncorpus: {source: installed_packages}\n")
    assert load("docstrings").name == "mine"
    home = tmp_path / "home"  # where a submitted job was started, of which it has a copy without what git ignores
    (home / "runs").mkdir(parents=True)
    (home / "runs" / "best.yaml").touch()
    monkeypatch.setenv("AXML_RAY_HOME", str(home))
    assert find_config("runs/best.yaml") == home / "runs" / "best.yaml"
    (tmp_path / "my-texts.yaml").touch()
    for name, fix in [
        ("quickstrat", "did you mean '--config quickstart'"),
        ("configs/zzz.yaml", "name a YAML file"),
        ("my-text.yml", "did you mean '--config my-texts.yaml'"),
    ]:
        with pytest.raises(SettingsError, match=fix):
            find_config(name)
