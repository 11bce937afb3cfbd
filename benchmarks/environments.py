"""Separate Python environments for the systems to compare with, made once below `.peers`, which git ignores.

This process never imports those systems; it starts a worker with their Python and exchanges files with it.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import results_file
from rich.console import Console

ENVIRONMENTS = results_file.ROOT / ".peers"

OMIKUJI = ("omikuji==0.5.2", "milksnake==0.1.6", "cffi==2.1.1", "pycparser==3.12")
NAPKINXC = ("numpy==2.4.6", "scipy==1.17.1", "tqdm==4.70.1")
NAPKINXC_ALONE = ("napkinxc==0.7.2",)  # without what downloads data sets
PECOS = ("numpy==1.26.4", "scipy==1.13.1", "scikit-learn==1.5.2")  # the newest that libpecos 1.2.8 works with
PECOS_ALONE = ("libpecos==1.2.8",)  # without torch and transformers, which linear models don't use


class PeerError(RuntimeError):
    """The other environment could not be made, or the program in it failed; the message says why."""


def environment(
    console: Console,
    name: str = "omikuji",
    requirements: Sequence[str] = OMIKUJI,
    without_dependencies: Sequence[str] = (),
) -> Path:
    """Return the Python of a peer's environment, which is made if it is missing or has other versions.

    Args:
        console: console for the progress.
        name: name of the environment's directory in `.peers`.
        requirements: requirements that pip installs.
        without_dependencies: requirements that pip installs afterwards, without their dependencies.

    Raises:
        PeerError: pip could not install it.
    """
    directory = ENVIRONMENTS / name
    python = directory / "bin" / "python"
    marker = directory / "installed.txt"  # written last, so half an environment is made again
    lines = (*requirements, *without_dependencies, f"# Python {sys.version.split()[0]}")
    wanted = "".join(f"{line}\n" for line in lines)
    if marker.is_file() and marker.read_text() == wanted and python.exists():
        return python
    with console.status(f"making the environment {directory}"):
        venv.create(directory, clear=True, with_pip=True, symlinks=os.name != "nt")
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary=:all:",
        ]
        checked([*pip, *requirements], f"pip could not install {name}")
        if without_dependencies:
            checked([*pip, "--no-deps", *without_dependencies], f"pip could not install {name}")
    marker.write_text(wanted)
    return python


def checked(words: Sequence[str | Path], complaint: str) -> None:
    """Run a program; raise PeerError with the end of its output if it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-12:])
        raise PeerError(f"{complaint} (exit status {done.returncode}):\n{last}")
