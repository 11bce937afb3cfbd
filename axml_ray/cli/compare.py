"""Compare two finished runs on the same documents: differences, intervals, and a paired test for each measure.

    axml-ray compare runs/first runs/second [--split test] [--html comparison.html] [--json comparison.json]

A difference is what the second gains over the first. Stored predictions are reused, so that it takes seconds.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
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

    from axml_ray.corpus.store import Corpus
    from axml_ray.evaluation.reports.comparison import bands_table, measures_table, settings_table
    from axml_ray.evaluation.reports.report import write_metrics
    from axml_ray.runs.run import Run
    from axml_ray.workflow.compare import compare_runs

    first, second = (Run(settings, Corpus.open(settings.corpus_directory)) for settings in runs)
    with _naming_errors("--html", given.html):
        comparison = compare_runs(first, second, given.split, given.html)
    console = Console(width=None if Console().is_terminal else 110)
    console.print(measures_table(comparison))
    console.print(bands_table(comparison))
    if comparison["settings"]:
        console.print(settings_table(comparison))
    if given.json:
        with _naming_errors("--json", given.json):
            given.json.parent.mkdir(parents=True, exist_ok=True)
            write_metrics(given.json, comparison)
    for name in ("html", "json"):
        if path := getattr(given, name):
            print(f"{name}: {path}")


def _settings(directory: Path, corpora: Path | None) -> Experiment:
    """Return the settings of a run, with the directory of corpora that the command line gives."""
    settings = read_settings(directory)
    return settings.model_copy(update={"corpora": corpora}) if corpora else settings


@contextmanager
def _naming_errors(flag: str, path: Path | None) -> Iterator[None]:
    """Turn an error of writing the file of a flag into a SettingsError."""
    try:
        yield
    except OSError as error:
        if path is None:
            raise
        raise SettingsError(f"{flag} {path}: cannot be written ({error.strerror})") from None
