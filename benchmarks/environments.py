"""Separate Python environments for the systems to compare with, made once below `.peers`, which git ignores.

This process never imports those systems; it starts a worker with their Python and exchanges files with it.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import results_file
from rich.console import Console

ENVIRONMENTS = results_file.ROOT / ".peers"


@dataclass(frozen=True)
class Requirements:
    """The requirements of an environment, in the order in which pip installs them."""

    wheels: Sequence[str]
    """Requirements that are installed with their dependencies, from wheels."""
    alone: Sequence[str] = ()
    """Requirements that are installed from wheels without their dependencies."""
    built: Sequence[str] = ()
    """Requirements that are built from their source in this environment, without their dependencies."""


class PeerError(RuntimeError):
    """The other environment could not be made, or the program in it failed; the message says why."""


def environment(console: Console, name: str, requirements: Requirements) -> Path:
    """Return the Python of a peer's environment, which is made if it is missing or has other versions.

    Args:
        console: console for the progress.
        name: name of the environment's directory in `.peers`.
        requirements: what pip installs.

    Raises:
        PeerError: pip could not install it.
    """
    directory = ENVIRONMENTS / name
    python = directory / "bin" / "python"
    marker = directory / "installed.txt"  # written last, so half an environment is made again
    lines = (*requirements.wheels, *requirements.alone, *requirements.built, f"# Python {sys.version.split()[0]}")
    content = "".join(f"{line}\n" for line in lines)
    if marker.is_file() and marker.read_text() == content and python.exists():
        return python
    with console.status(f"making the environment {directory}"):
        venv.create(directory, clear=True, with_pip=True, symlinks=os.name != "nt")
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wheels, source = "--only-binary=:all:", "--no-build-isolation"
        checked([*pip, wheels, *requirements.wheels], f"pip could not install {name}")
        if requirements.alone:
            checked([*pip, wheels, "--no-deps", *requirements.alone], f"pip could not install {name}")
        if requirements.built:
            checked([*pip, source, "--no-deps", *requirements.built], f"pip could not build {name}")
    marker.write_text(content)
    return python


def checked(words: Sequence[str | Path], complaint: str) -> None:
    """Run a program; raise PeerError with the end of its output if it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-12:])
        raise PeerError(f"{complaint} (exit status {done.returncode}):\n{last}")
