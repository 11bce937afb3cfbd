"""The images of deploy/Dockerfile, which cannot be built where there is no Docker: its stages, paths and locks.

Run: pytest tests/test_images.py
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "deploy/Dockerfile"
DEVICES = ("cpu", "cuda")


@dataclass
class Stage:
    base: str
    commands: list[tuple[str, str]] = field(default_factory=list)


def stages() -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments before the first stage with their defaults, and the stages by name."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        command, rest = line.split(maxsplit=1)
        if command == "FROM":
            base, _, name = rest.split()
            found[name] = Stage(base)
        elif found:
            list(found.values())[-1].commands.append((command, rest))
        else:
            assert command == "ARG"
            name, _, default = rest.partition("=")
            arguments[name] = default
    return arguments, found


def chain(device: str) -> list[Stage]:
    """The stages of the image for a device, from the last."""
    arguments, found = stages()
    order = [*found]
    chain, name = [], order[-1]
    while name in found:
        stage = found[name]
        chain.append(stage)
        base = stage.base.replace("${DEVICE}", device)
        assert base not in found or order.index(base) < order.index(name)
        name = base
    assert arguments["DEVICE"] in DEVICES
    assert name.startswith("python:3.11")
    return chain


def pins(name: str) -> dict[str, str]:
    """The versions in a lock by package."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_copied_is_there(device):
    copied = [rest.split()[:-1] for stage in chain(device) for command, rest in stage.commands if command == "COPY"]
    sources = [source for row in copied for source in row]
    assert all((ROOT / source).exists() for source in sources)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    for pattern in packages["packages"]["find"]["include"]:
        assert pattern.removesuffix("*") in sources
    lock = {"cpu": "requirements.lock", "cuda": "requirements-cuda.lock"}[device]
    assert [source for source in sources if source.endswith(".lock")] == [lock]
    installs = [
        rest for stage in chain(device) for command, rest in stage.commands if command == "RUN" and "pip" in rest
    ]
    assert [lock in rest for rest in installs] == [False, True]


def test_triton_has_a_compiler():
    words = {word for stage in chain("cuda") for _, rest in stage.commands for word in rest.split()}
    assert {"gcc", "libc6-dev"} <= words


def test_the_lock_for_cuda_is_a_part_of_the_lock():
    whole, part = pins("requirements.lock"), pins("requirements-cuda.lock")
    assert part.items() <= whole.items()
    assert "+" not in part["torch"]  # not the build for CPUs
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["serve"], *extras["tune"]]:
        name = re.match(r"[\w-]+", requirement)
        assert name is not None and name[0].lower() in {key.lower() for key in part}
    assert not {"pytest", "mkdocs", "mypy"} & part.keys()
