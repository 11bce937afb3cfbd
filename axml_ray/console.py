"""What the jobs share: settings from the command line, progress as lines of text, one line for an error."""

import argparse
import logging
import sys
from collections.abc import Callable
from functools import partial

from axml_ray.cluster import keep_logs
from axml_ray.configuration import from_command_line, only_flags, with_flags
from axml_ray.settings import Experiment, SettingsError, absolute

Command = Callable[[], None]


def job(description: str | None) -> Callable[[Callable[[Experiment], None]], Command]:
    """Make a function of the settings a command.

    It exits 2 for wrong settings or input and 1 for a failure, with one line on standard error.
    """

    def decorate(work: Callable[[Experiment], None]) -> Command:
        def main() -> None:
            run_command(partial(work, from_command_line(description or "")))

        return main

    return decorate


def job_with_flags(
    description: str | None, add: Callable[[argparse.ArgumentParser], None]
) -> Callable[[Callable[[Experiment, argparse.Namespace], None]], Command]:
    """As `job`, for a function of the settings and of flags of its own, which `add` adds to a parser."""

    def decorate(work: Callable[[Experiment, argparse.Namespace], None]) -> Command:
        def main() -> None:
            run_command(partial(work, *with_flags(description or "", add)))

        return main

    return decorate


def job_of_flags(
    description: str | None, add: Callable[[argparse.ArgumentParser], None]
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """As `job`, for a function of flags of its own alone, which `add` adds to a parser."""

    def decorate(work: Callable[[argparse.Namespace], None]) -> Command:
        def main() -> None:
            run_command(partial(work, only_flags(description or "", add)))

        return main

    return decorate


def job_on_run(
    description: str | None, add: Callable[[argparse.ArgumentParser], None]
) -> Callable[[Callable[[Experiment, argparse.Namespace], None]], Command]:
    """As `job_with_flags`, for a job on a finished run: the settings are those of `--run DIRECTORY`.

    Where it runs and how it is judged may be changed by flags, nothing else.
    """

    def add_run(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--run", type=absolute, metavar="DIRECTORY", help="the run; its settings are used")
        add(parser)

    def decorate(work: Callable[[Experiment, argparse.Namespace], None]) -> Command:
        def main() -> None:
            run_command(partial(_work_on_run, description or "", add_run, work))

        return main

    return decorate


def _work_on_run(
    description: str,
    add: Callable[[argparse.ArgumentParser], None],
    work: Callable[[Experiment, argparse.Namespace], None],
) -> None:
    from axml_ray.judging import FREE, SETTINGS, at, open_run  # heavy, and other jobs have no use for it

    arguments = sys.argv[1:]
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--run", type=absolute)
    directory = finder.parse_known_args(arguments)[0].run
    if directory is None:
        if {"-h", "--help"} & set(arguments):
            with_flags(description, add, arguments)
        raise SettingsError("command line: --run: name the directory of a run")
    stored = open_run(directory)
    settings, given = with_flags(description, add, ["--config", str(directory / SETTINGS), *arguments])
    now = at(settings, directory)
    changed = [key for key, value in now if key not in FREE and value != getattr(stored, key)]
    if changed:
        raise SettingsError(
            f"command line: the settings of {directory} are its own; only {', '.join(FREE)} may be "
            f"given, not {', '.join(changed)}"
        )
    work(now, given)


def count(word: str) -> int:
    """A whole number above 0, for a parser."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0 (given: {word!r})")
    return int(word)


def run_command(work: Command) -> None:
    """Run a job's work; an error ends the process with 2 for wrong settings or input, 1 for a failure, and one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        work()
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (RuntimeError, OSError) as error:
        message: object = error
        if isinstance(error, OSError):
            if error.strerror is None:  # not the system's
                raise
            message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        keep_logs()
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(1) from None
