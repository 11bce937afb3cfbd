"""The `axml-ray` command: its first word names a command, which gets the other words.

Only the module of that command is imported, so that `axml-ray --help` answers at once.
"""

import argparse
import difflib
import sys
from importlib import import_module

import axml_ray
from axml_ray.cli.console import PROGRAM

COMMANDS = {
    "demo": ("axml_ray.cli.demo", "train and evaluate on the docstrings of the installed packages"),
    "prepare": ("axml_ray.cli.prepare", "prepare a corpus: words, labels, word vectors, label features"),
    "plan": ("axml_ray.cli.plan", "estimate memory, time and disk of a run"),
    "train": ("axml_ray.cli.train", "prepare, train an ensemble, and evaluate it on the test split"),
    "evaluate": ("axml_ray.cli.evaluate", "score a finished run, with intervals and an HTML report"),
    "compare": ("axml_ray.cli.compare", "test whether one of two runs is better, document by document"),
    "inspect": ("axml_ray.cli.inspect", "show a label tree"),
    "export": ("axml_ray.cli.export", "make a bundle of a finished run"),
    "predict": ("axml_ray.cli.predict", "predict the labels of files of texts with a bundle"),
    "serve": ("serve_app.__main__", "serve a bundle: a web page and an HTTP API"),
    "tune": ("axml_ray.cli.tune", "search for good settings by trials"),
    "cluster": ("axml_ray.cli.cluster", "start or stop a Ray head on this machine, for `ray job submit`"),
    "doctor": ("axml_ray.cli.doctor", "show what this machine offers, and what it means for the settings"),
}
"""The module and a description of each command; the module's `main` runs it."""


def main(argv: list[str] | None = None) -> None:
    """Run the command that the first of `argv` names; by default, they are those of the process."""
    argv = sys.argv[1:] if argv is None else argv
    lines = [f"  {name:<9} {description}" for name, (_, description) in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        PROGRAM,
        usage=f"{PROGRAM} [-h] [--version] COMMAND …",
        description="Tag texts with the right few of thousands or millions of labels.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["commands:", *lines, "", f"`{PROGRAM} COMMAND --help` explains one."]),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {axml_ray.__version__}")
    if not argv:
        parser.print_help()
        raise SystemExit(2)
    if argv[0] == "help":
        argv = [*argv[1:], "--help"]
    if argv[0].startswith("-"):
        parser.parse_args(argv[:1])
    name, *rest = argv
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        fix = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(COMMANDS)}"
        print(f"error: command line: {name}: unknown command; {fix}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = [f"{PROGRAM} {name}", *rest]  # argparse shows the first word in the usage
    try:
        import_module(COMMANDS[name][0]).main()
    except KeyboardInterrupt:  # while modules are imported
        raise SystemExit(130) from None
