"""Compare two finished runs on the same documents: differences, intervals, and a paired test for each measure.

    axml-ray compare runs/first runs/second [--split test] [--html comparison.html] [--json comparison.json]

A difference is what the second gains over the first. Stored predictions are reused, so that it takes seconds.
"""

import argparse

from axml_ray.cli.console import job_of_flags, table_console, write_output
from axml_ray.core.paths import absolute
from axml_ray.settings import SPLITS
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
    # Directories that are no runs are reported before slow imports.
    runs = [read_settings(directory) for directory in (given.first, given.second)]
    if given.corpora:
        runs = [settings.model_copy(update={"corpora": given.corpora}) for settings in runs]

    from axml_ray.evaluation.reports.comparison import bands_table, measures_table, settings_table, write_page
    from axml_ray.evaluation.reports.report import write_metrics
    from axml_ray.runs.run import Run
    from axml_ray.workflow.compare import compare_runs, differing_examples

    first, second = (Run.open(settings) for settings in runs)
    comparison = compare_runs(first, second, given.split)
    console = table_console()
    console.print(measures_table(comparison))
    console.print(bands_table(comparison))
    if comparison["settings"]:
        console.print(settings_table(comparison))
    if given.html:
        examples = differing_examples(first, second, given.split)
        write_output("--html", given.html, lambda path: write_page(path, comparison, examples))
    if given.json:
        write_output("--json", given.json, lambda path: write_metrics(path, comparison))
