"""`axml-ray doctor`: what it finds here, and what follows for the settings."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest

from axml_ray.cli import doctor
from axml_ray.cli.parser import with_flags
from axml_ray.planning import diagnosis
from axml_ray.planning.diagnosis import GIB, diagnose, trainable_labels
from axml_ray.settings.presets import tree_share


@pytest.mark.parametrize(("cores", "share"), [(1, 0.33), (2, 0.66), (3, 1), (7, 2), (64, 21)])
def test_trees_share_the_cores(cores: int, share: float) -> None:
    assert tree_share(cores) == share and 3 * share <= cores


def test_labels_that_fit_grow_with_memory() -> None:
    # 512 floats of a label and its four or five copies, in half of the memory.
    assert 400_000 < trainable_labels(8) < 600_000
    assert trainable_labels(16) == pytest.approx(2 * trainable_labels(8), rel=0.1)


def finding(subject: str) -> diagnosis.Finding:
    return next(each for each in diagnose() if each.subject == subject)


def test_settings_that_are_advised_exist() -> None:
    findings = diagnose()
    subjects = [each.subject for each in findings]
    assert {"cores", "memory", "GPUs", "Ray", "disk", "extras"} <= set(subjects)
    words = finding("cores").meaning.split()
    flags = words[next(i for i, word in enumerate(words) if word.startswith("--")) :]
    settings, _ = with_flags("", lambda parser: None, ["--config", "quickstart", *flags])
    assert settings.resources.cpus_per_worker == tree_share(diagnosis.available_cpus())


def test_problems_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(diagnosis, "available_memory", lambda: 2 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0.5 * GIB))
    monkeypatch.setenv("RAY_TMPDIR", "/" + "x" * 80)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("AXML_RAY_HOME", str(tmp_path / "not" / "yet"))
    problems = {each.subject for each in diagnose() if each.is_problem}
    assert {"memory", "disk", "temporary files", "Ray"} <= problems


def test_the_command_writes_its_findings(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["axml-ray doctor", "--json", "findings.json"])
    found = [diagnosis.Finding("memory", "2 GiB", "too small", True), diagnosis.Finding("cores", "2", "fine")]
    monkeypatch.setattr(diagnosis, "diagnose", lambda: found)
    monkeypatch.setattr(type(sys.stdout), "reconfigure", lambda *_, **__: None, raising=False)
    with pytest.raises(SystemExit) as ended:
        doctor.main()
    assert ended.value.code == 1  # there is a problem
    written = json.loads((tmp_path / "findings.json").read_text())["findings"]
    assert [each["subject"] for each in written] == ["memory", "cores"] and written[0]["is_problem"]
    assert "✗ memory" in capsys.readouterr().out
