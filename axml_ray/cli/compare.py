"""Compare two finished runs on the same documents: differences, intervals, and a paired test for each measure.

    axml-ray compare runs/first runs/second [--split test] [--html comparison.html] [--json comparison.json]

A difference is what the second gains over the first. Stored predictions are reused, so that it takes seconds.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from axml_ray.cli.console import job_of_flags
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute
from axml_ray.settings import SPLITS, Experiment
from axml_ray.settings.configuration import read_settings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("first", type=absolute, metavar="FIRST", help="directory of the run to compare with")
    parser.add_argument("second", type=absolute, metavar="SECOND", help="directory of the run whose gains are measured")
    parser.add_argument("--split", choices=SPLITS, default="test", help="split of their corpus (default: test)")
    parser.add_argument("--html", type=absolute, metavar="PATH", help="also write a page with example documents")
    parser.add_argument("--json", type=absolute, metavar="PATH", help="also write the numbers to this JSON file")
    parser.add_argument("--corpora", type=absolute, metavar="DIR", help="directory of the corpora, if it was moved")


@job_of_flags(__doc__, add_flags)
def main(given: argparse.Namespace) -> None:
    """Compare the runs, print the tables, and write the files.

    Raises:
        SettingsError: a directory is not a run, the corpora differ, or a file cannot be written.
    """
    runs = [_settings(directory, given.corpora) for directory in (given.first, given.second)]

    from rich.console import Console

    from axml_ray.evaluation.reports.comparison import bands_table, measures_table, settings_table
    from axml_ray.evaluation.reports.report import write_metrics
    from axml_ray.runs.run import Run
    from axml_ray.workflow.compare import compare_runs

    first, second = (Run.open(settings) for settings in runs)
    comparison = compare_runs(first, second, given.split)
    console = Console(width=None if Console().is_terminal else 110)
    console.print(measures_table(comparison.content))
    console.print(bands_table(comparison.content))
    if comparison.content["settings"]:
        console.print(settings_table(comparison.content))
    if given.html:
        _write("--html", given.html, comparison.write_html)
    if given.json:
        _write("--json", given.json, lambda path: write_metrics(path, comparison.content))


def _settings(directory: Path, corpora: Path | None) -> Experiment:
    """Return the settings of a run, with the directory of corpora that the command line gives."""
    settings = read_settings(directory)
    return settings.model_copy(update={"corpora": corpora}) if corpora else settings


def _write(flag: str, path: Path, write: Callable[[Path], None]) -> None:
    """Write a file and print its path.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        raise SettingsError(f"{flag} {path}: cannot be written ({error.strerror})") from None
    print(f"{flag.removeprefix('--')}: {path}")
