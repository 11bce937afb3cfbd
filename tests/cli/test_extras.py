"""A command whose extra is not installed says in one line what to run, before Ray starts."""

import importlib.util
import sys

import pytest

from axml_ray.cli import tune
from axml_ray.core import extras
from axml_ray.core.errors import SettingsError
from axml_ray.core.extras import EXTRAS, require_extra
from serve_app import __main__ as serve


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    """Hide a module from `find_spec`."""
    found = importlib.util.find_spec

    def hide(module: str) -> None:
        monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else found(name))

    return hide


@pytest.mark.parametrize(
    ("extra", "command", "words"),
    [("tune", tune, ["--config", "quickstart", "--space", "tune_spaces.tree"]), ("serve", serve, ["--bundle", "none"])],
)
def test_one_line_names_the_extra(without, monkeypatch, capsys, tmp_path, extra, command, words) -> None:
    monkeypatch.chdir(tmp_path)
    without(EXTRAS[extra][0])
    monkeypatch.setattr(sys, "argv", [f"axml-ray {extra}", *words])
    monkeypatch.setattr(type(sys.stdout), "reconfigure", lambda *_, **__: None, raising=False)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == f'error: {EXTRAS[extra][0]}: not installed; run: pip install "axml-ray[{extra}]"\n'
    )


def test_what_is_installed_is_accepted() -> None:
    require_extra("serve")
    require_extra("tune")
    with pytest.raises(KeyError):
        require_extra("none")


def test_errors_are_settings_errors(without) -> None:
    without("optuna")
    with pytest.raises(SettingsError, match="optuna: not installed"):
        require_extra("tune")
