"""The wheel: its content, and the command that it installs, outside of the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from axml_ray.cli.dispatch import COMMANDS
from axml_ray.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PACKAGES = ("axml_ray", "serve_app", "tune_spaces")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, since setuptools writes into the source's directory."""
    home = tmp_path_factory.mktemp("wheel")
    source = home / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", home, source)
    [built] = home.glob("axml_ray-*.whl")
    return built


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own, whose other packages are those of this environment."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip("--python", python, "install", "--no-deps", wheel)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "axml-ray"


def pip(*words: object) -> None:
    options = ["--quiet", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", *map(str, words), *options], check=True, timeout=300)


def run(command: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an empty directory, with an empty home and without the repository on the path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AXML_RAY_HOME")}
    return subprocess.run(
        [command, *words], cwd=home, env=environment | {"HOME": str(home)}, capture_output=True, text=True, timeout=300
    )


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file())
    assert packed == {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert {"axml_ray/py.typed", "axml_ray/settings/configs/quickstart.yaml", "serve_app/page/index.html"} <= packed


def test_the_wheel_names_its_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        [name] = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(content.read(name))
    assert {*EXTRAS, "dev"} <= set(metadata.get_all("Provides-Extra", []))
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in core if line.startswith(("optuna", "fastapi", "tensorboard>"))]


def test_the_command_works_in_an_empty_folder(command: Path, tmp_path: Path) -> None:
    listed = run(command, tmp_path, "--help")
    assert listed.returncode == 0 and all(f"  {name} " in listed.stdout for name in COMMANDS)
    flags = ("--config", "quickstart", "--gpus", "1", "--memory", "8", "--rate", "10", "--json", "plan.json")
    planned = run(command, tmp_path, "plan", *flags)
    assert planned.returncode == 0, planned.stderr
    assert {path.name for path in tmp_path.iterdir()} - {".cache", ".config"} == {"plan.json"}
    refused = run(command, tmp_path, "serve", "--bundel", "x")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1) and "'--bundle'" in refused.stderr
