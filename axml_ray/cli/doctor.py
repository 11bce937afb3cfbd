"""Show cores, memory, GPUs, Ray and disk of this machine, and what they mean for the settings. Ray is not started.

    axml-ray doctor [--json PATH]

The exit code is 1 if a training may fail here.
"""

import argparse
from typing import TYPE_CHECKING

from axml_ray.cli.console import job_of_flags, table_console, write_output
from axml_ray.core.paths import absolute

if TYPE_CHECKING:
    from rich.table import Table

    from axml_ray.planning.diagnosis import Finding


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("--json", type=absolute, metavar="PATH", help="also write the findings to this JSON file")


@job_of_flags(__doc__, add_flags)
def main(given: argparse.Namespace) -> None:
    """Print the findings, and write them to the file of --json.

    Raises:
        SettingsError: the file cannot be written.
    """
    from dataclasses import asdict

    from axml_ray.core.files import write_json
    from axml_ray.planning.diagnosis import diagnose

    findings = diagnose()
    table_console().print(table(findings))
    if given.json:
        content = {"findings": [asdict(finding) for finding in findings]}
        write_output("--json", given.json, lambda path: write_json(path, content))
    if any(finding.is_problem for finding in findings):
        raise SystemExit(1)


def table(findings: "list[Finding]") -> "Table":
    """Return the findings as a table for a rich console, with problems marked."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("", "here", "what it means"):
        shown.add_column(name, overflow="fold")
    for finding in findings:
        style = "bold red" if finding.is_problem else ""
        sign = "✗ " if finding.is_problem else "✓ "
        shown.add_row(Text(sign + finding.subject, style), Text(finding.value), Text(finding.meaning, style))
    return shown
