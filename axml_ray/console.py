"""What the jobs share: settings from the command line, progress as log lines, one line for an error or a stop.

Settings are read before anything heavy is imported, so that a mistyped one is reported at once: this module imports
neither PyTorch nor Ray, and a job imports them inside its function.
"""

import argparse
import logging
import shlex
import signal
import sys
from collections.abc import Callable
from typing import Any

from axml_ray.cluster import keep_logs
from axml_ray.configuration import FREE, from_command_line, moved_to, only_flags, read_settings, with_flags
from axml_ray.settings import Experiment, SettingsError, absolute
from axml_ray.storage.layout import RunLayout

Work = Callable[[], None]
INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a process that Ctrl-C ended, as shells expect it."""


class Command:
    """A job as a command: reads the process's arguments, then works.

    It exits 2 for wrong settings or input, 1 for a failure and 130 after Ctrl-C, with one line on standard error.

    Args:
        parse: makes the arguments of `work` from the words of a command line; by default, the process's own.
        work: the job.
    """

    def __init__(self, parse: Callable[[list[str] | None], tuple[Any, ...]], work: Callable[..., None]):
        self.parse, self.work = parse, work
        self.__doc__ = work.__doc__

    def __call__(self) -> None:
        """Run the job with the process's arguments."""
        run_command(lambda: self.work(*self.parse(None)))


def job(description: str | None) -> Callable[[Callable[[Experiment], None]], Command]:
    """Make a function of the settings a command."""
    return lambda work: Command(lambda words: (from_command_line(description or "", words),), work)


def job_with_flags(
    description: str | None, add: Callable[[argparse.ArgumentParser], None], shown: tuple[str, ...] | None = None
) -> Callable[[Callable[[Experiment, argparse.Namespace], None]], Command]:
    """As `job`, for a function of the settings and of flags of its own.

    Args:
        description: what the job does.
        add: adds the job's own flags to a parser.
        shown: settings and groups of settings that `--help` lists; by default all.
    """
    return lambda work: Command(lambda words: with_flags(description or "", add, words, shown), work)


def job_of_flags(
    description: str | None, add: Callable[[argparse.ArgumentParser], None]
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """As `job`, for a function of flags of its own alone, which `add` adds to a parser."""
    return lambda work: Command(lambda words: (only_flags(description or "", add, words),), work)


def job_on_run(
    description: str | None, add: Callable[[argparse.ArgumentParser], None]
) -> Callable[[Callable[[Experiment, argparse.Namespace], None]], Command]:
    """As `job_with_flags`, for a job on a finished run: the settings are those of `--run DIRECTORY`.

    Where it runs and how it is judged may be changed by flags, nothing else.
    """

    def add_run(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--run", type=absolute, metavar="DIRECTORY", help="the run; its settings are used")
        add(parser)

    return lambda work: Command(lambda words: _settings_of_run(description or "", add_run, words), work)


def _settings_of_run(
    description: str, add: Callable[[argparse.ArgumentParser], None], words: list[str] | None
) -> tuple[Experiment, argparse.Namespace]:
    arguments = sys.argv[1:] if words is None else words
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--run", type=absolute)
    directory = finder.parse_known_args(arguments)[0].run
    if directory is None:
        if {"-h", "--help"} & set(arguments):
            with_flags(description, add, arguments, FREE)
        raise SettingsError("command line: --run: name the directory of a run")
    stored = read_settings(directory)
    settings, given = with_flags(description, add, ["--config", str(RunLayout(directory).settings), *arguments], FREE)
    now = moved_to(settings, directory)
    changed = [key for key, value in now if key not in FREE and value != getattr(stored, key)]
    if changed:
        raise SettingsError(
            f"command line: the settings of {directory} are its own; only {', '.join(FREE)} may be "
            f"given, not {', '.join(changed)}"
        )
    return now, given


def count(word: str) -> int:
    """A whole number above 0, for a parser."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0 (given: {word!r})")
    return int(word)


def run_command(work: Work) -> None:
    """Run a job's work; an error ends the process with 2 for wrong settings or input, 1 for a failure, and one line.

    Ctrl-C ends it with 130 and one line that repeats the command: what was finished is kept, and it goes on from there.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        work()
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        # Ending Ray takes a second or two; a second Ctrl-C in the middle of it would spill a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(f"stopped; the same command goes on from here: {shlex.join(sys.orig_argv)}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except (RuntimeError, OSError) as error:
        message: object = error
        if isinstance(error, OSError):
            if error.strerror is None:  # not the system's
                raise
            message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        keep_logs()
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(1) from None
