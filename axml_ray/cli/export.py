"""Export a finished run as a bundle: one directory with everything that prediction needs.

    axml-ray export --run runs/quickstart --to bundles/quickstart --weights bfloat16 --licence cc-by-4.0

Weights of fewer bits make it smaller; the loss of accuracy on the validation documents is printed.
"""

import argparse
import logging
from typing import TYPE_CHECKING, get_args

from axml_ray.cli.console import job_of_flags, table_console
from axml_ray.core.paths import absolute, with_urls
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.settings import Weights
from axml_ray.settings.configuration import read_settings

if TYPE_CHECKING:
    from rich.table import Table

    from axml_ray.inference.bundle.export import Exported


log = logging.getLogger(__name__)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("--run", type=absolute, required=True, metavar="DIR", help="directory or URL of a finished run")
    parser.add_argument("--to", type=absolute, required=True, metavar="DIR", help="directory or URL of the bundle")
    parser.add_argument("--weights", choices=get_args(Weights), default="float32", help="number format of matrices")
    parser.add_argument("--licence", metavar="NAME", help="of the model, as in SPDX; by default its card states none")
    parser.add_argument("--corpora", type=absolute, metavar="DIR", help="directory of the corpora, if it was moved")


def table(exported: "Exported") -> "Table":
    """Return the scores by number format of the weights as a table for a rich console."""
    from axml_ray.evaluation.reports.report import empty_table
    from axml_ray.inference.bundle.model_card import VALIDATION_MEASURES as MEASURES

    shown = empty_table(f"{exported.documents:,} validation documents", ("weights", *MEASURES))
    for weights, scores in exported.scores.items():
        shown.add_row(weights, *(f"{scores[name]:.2f}" if name in scores else "–" for name in MEASURES))
    if len(exported.scores) == 2:
        full, reduced = exported.scores.values()
        shown.add_row("lost", *(f"{full[name] - reduced[name]:.2f}" if name in full else "–" for name in MEASURES))
    return shown


@job_of_flags(__doc__, add_flags)
def main(given: argparse.Namespace) -> None:
    """Export the run, and print scores and size of the bundle."""
    from axml_ray.inference.bundle.export import export_bundle
    from axml_ray.runs.run import Run

    settings = read_settings(given.run)
    if given.corpora:
        settings = settings.model_copy(update={"corpora": given.corpora})
    log.info("export: writing %s weights, then predicting the validation documents with them", given.weights)
    with phase("export"), Heartbeat("export"):
        run = Run.open(settings)
        exported = export_bundle(run, given.to, given.weights, licence=given.licence)
    table_console().print(table(exported))
    print(f"Bundle: {with_urls(exported.directory)} ({exported.bytes / 2**20:,.1f} MiB)")
    print(f"Next: axml-ray predict --bundle {with_urls(given.to)} --input texts.jsonl --output predictions")
