"""Judge a finished run: scores with intervals, by tree and label frequency, against another run, and the report.

python jobs/evaluate.py --run runs/quickstart [--split test] [--against runs/other] [--open]

Stored predictions are used; only where they are missing, or of other trees, is the split predicted. The run's directory
gets metrics.json and report/index.html (of another split than test: metrics-SPLIT.json and report/SPLIT.html).
"""

import argparse
import webbrowser

from axml_ray.configuration import read_settings
from axml_ray.console import job_on_run
from axml_ray.settings import SPLITS, Experiment, absolute


def flags(parser: argparse.ArgumentParser) -> None:
    """What the job takes beside the settings."""
    parser.add_argument("--split", choices=SPLITS, default="test", help="of the run's corpus; test where none is named")
    parser.add_argument(
        "--against", type=absolute, metavar="DIRECTORY", help="a run to compare with, document by document"
    )
    parser.add_argument("--open", action="store_true", help="show the report in the browser")


@job_on_run(__doc__, flags)
def main(settings: Experiment, given: argparse.Namespace) -> None:
    """Judge the run, show its tables and say where the report lies."""
    from rich.console import Console

    from axml_ray.corpus.store import Corpus
    from axml_ray.evaluation.report import bands_table, comparison_table, table
    from axml_ray.judging import evaluate
    from axml_ray.run import Run

    other = None
    if given.against:
        others, stored = read_settings(given.against), read_settings(settings.run_directory)
        here = {key: getattr(settings, key) for key in ("corpora", "resources")}
        others = others.model_copy(update={key: now for key, now in here.items() if now != getattr(stored, key)})
        other = Run(others, Corpus.open(others.corpus_directory))
    run = Run(settings, Corpus.open(settings.corpus_directory))
    metrics = evaluate(run, given.split, other=other)
    console = Console(width=None if Console().is_terminal else 110)
    console.print(table(metrics))
    console.print(bands_table(metrics))
    if other:
        console.print(comparison_table(metrics))
    report = run.layout.report(given.split)
    print(f"report: {report}")
    if given.open:
        webbrowser.open(report.as_uri())


if __name__ == "__main__":
    main()
