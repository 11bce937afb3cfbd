"""Evaluate a finished run: scores with confidence intervals, by member and label frequency, and an HTML report.

    axml-ray evaluate --run runs/quickstart [--split test] [--label-sets] [--open]

Stored predictions are reused; the split is predicted only if they are missing or stale. The results are metrics.json
and report/index.html in the run's directory (for other splits than test: metrics-SPLIT.json and report/SPLIT.html).
"""

import argparse
import webbrowser

from axml_ray.cli.console import job_on_run, table_console
from axml_ray.settings import SPLITS, Experiment


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("--split", choices=SPLITS, default="test", help="split of the run's corpus (default: test)")
    parser.add_argument(
        "--label-sets",
        action="store_true",
        help="also score the labels above one threshold (micro-F1), chosen on the validation documents",
    )
    parser.add_argument("--open", action="store_true", help="show the report in the browser")


@job_on_run(__doc__, add_flags)
def main(settings: Experiment, given: argparse.Namespace) -> None:
    """Evaluate the run, print its tables and the path of the report."""
    from axml_ray.cluster.failures import recorded_failures
    from axml_ray.core.lease import own
    from axml_ray.evaluation.reports.report import bands_table, scores_table, weights_table
    from axml_ray.runs.run import Run
    from axml_ray.tracking.tracked_run import scores_of, track
    from axml_ray.workflow.evaluate import evaluate

    run = Run.open(settings)
    report = run.layout.report(given.split)
    with recorded_failures(run.layout.directory), own(run.layout.directory):
        metrics = evaluate(run, given.split, with_label_sets=given.label_sets)
        with track(settings) as tracked:
            tracked.scores(scores_of(metrics))
            tracked.artifact("report", run.layout.charts(given.split))
    console = table_console()
    console.print(scores_table(metrics))
    console.print(bands_table(metrics))
    if about := metrics.get("combiner"):
        console.print(weights_table(about))
    if sets := metrics.get("label_sets"):
        console.print(
            f"Labels with a score of at least {sets['threshold']:.3f}, {sets['labels']:.1f} a document: micro-F1 "
            f"{sets['micro-F1']:.2f}, precision {sets['micro-precision']:.2f}, recall {sets['micro-recall']:.2f}"
        )
    print(f"report: {report}")
    if given.open:
        webbrowser.open(report.as_uri())
