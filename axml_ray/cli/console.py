"""The command-line behaviour that all jobs share: settings, log lines, exit codes, and one line for an error.

Settings are read before slow imports, so that a mistyped one is reported immediately: this module imports neither
PyTorch nor Ray, and a job imports them inside its function.
"""

import argparse
import errno
import logging
import math
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, TypeGuard

import axml_ray
from axml_ray.cli.parser import VERBOSE, AddFlags, from_command_line, only_flags, with_flags
from axml_ray.cluster.connection import keep_logs
from axml_ray.cluster.failures import record_of
from axml_ray.core.errors import JobError, SettingsError
from axml_ray.core.files import LEFTOVER
from axml_ray.core.lease import LeaseLostError
from axml_ray.core.paths import absolute, with_urls
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import FREE, moved_to, read_settings

if TYPE_CHECKING:
    from rich.console import Console

RAY_NOTICES = "A worker died or was killed|killed due to memory pressure"
"""Messages that Ray prints on the output of a driver, at some later time; the line of the failure tells it at once."""
PROGRAM = "axml-ray"
"""Name of the installed command."""
SIGNALLED = 128
"""Added to the number of the signal that stopped a job, its exit code, by the convention of shells."""
UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""Numbers of the errors of a place that cannot be written to, or is of another kind."""


class Command:
    """A job as a command-line program.

    It exits with 2 for invalid settings or input, 1 for a failure, 130 after Ctrl-C and 143 after SIGTERM, with one
    line on stderr; with `--verbose`, a failure also prints its traceback.

    Args:
        parse: converts the command line (`argv` without the program) to the arguments of `work`.
        work: function that does the work.
    """

    def __init__(self, parse: Callable[[list[str]], tuple[Any, ...]], work: Callable[..., None]):
        self.parse, self.work = parse, work
        self.__doc__ = work.__doc__

    def __call__(self) -> None:
        """Run the job with the arguments of the process."""
        argv = [argument for argument in sys.argv[1:] if argument != VERBOSE]
        run_command(lambda: self.work(*self.parse(argv)), verbose=VERBOSE in sys.argv[1:])


Decorator = Callable[[Callable[..., None]], Command]
"""Makes a command of a function. `description` says what it does, for `--help`; `add` adds its flags to a parser."""


def job(description: str | None, config: str | None = None) -> Decorator:
    """Decorate a function of the settings; `config` is used if the command line names none."""
    default = [] if config is None else ["--config", config]  # a later --config wins
    return lambda work: Command(lambda argv: (from_command_line(description or "", [*default, *argv]),), work)


def job_with_flags(description: str | None, add: AddFlags, shown: tuple[str, ...] | None = None) -> Decorator:
    """Decorate a function of the settings, of which `--help` lists those in `shown`, and of its own flags."""
    return lambda work: Command(lambda argv: with_flags(description or "", add, argv, shown), work)


def job_of_flags(description: str | None, add: AddFlags) -> Decorator:
    """Decorate a function of its own flags only."""
    return lambda work: Command(lambda argv: (only_flags(description or "", add, argv),), work)


def job_on_run(description: str | None, add: AddFlags) -> Decorator:
    """Decorate a function of the settings of the finished run `--run DIRECTORY`, and of its own flags.

    Flags can change only the groups in `configuration.FREE`: resources, evaluation, tracking and paths.
    """

    def add_run(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--run", type=absolute, metavar="DIRECTORY", help="directory or URL of a run, with its settings"
        )
        add(parser)

    def parse(argv: list[str]) -> tuple[Experiment, argparse.Namespace]:
        directory = find_flag(argv, "--run")
        if directory is None:
            if {"-h", "--help"} & set(argv):
                with_flags(description or "", add_run, argv, FREE)
            raise SettingsError("command line: --run: name the directory of a run")
        before = read_settings(directory)
        config = ["--config", str(RunLayout(directory).settings)]
        settings, options = with_flags(description or "", add_run, [*config, *argv], FREE)
        free = [key for key in FREE if key != "runs"]  # the run is where --run says
        if changed := [key for key, value in settings if key not in free and value != getattr(before, key)]:
            raise SettingsError(
                f"command line: the settings of {directory} cannot be changed, except for {', '.join(free)}; remove "
                f"the flags of {', '.join(changed)}"
            )
        return moved_to(settings, directory), options

    return lambda work: Command(parse, work)


def find_flag(argv: list[str], flag: str) -> Path | None:
    """Return the directory that one flag names, before the other flags can be parsed; None without it."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(flag, dest="directory")
    directory: str | None = finder.parse_known_args(argv)[0].directory
    return None if directory is None else absolute(directory)


def count(text: str) -> int:
    """Convert text to a whole number above 0, as the `type` of a flag."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0 (given: {text!r})")
    return int(text)


def number(expected: str, is_valid: Callable[[float], bool]) -> Callable[[str], float]:
    """Return the `type` of a flag whose value is `expected`, such as "a number from 0 to 1"."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"expected {expected} (given: {text!r})")
        return value

    return convert


def write_output(flag: str, path: Path, write: Callable[[Path], None]) -> None:
    """Write the file of a flag, and print its path.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        raise SettingsError(
            f"{flag} {path}: cannot be written ({error.strerror}); give a path where you may write"
        ) from None
    print(f"{flag.removeprefix('--')}: {with_urls(path)}")


def table_console(width: int = 110) -> "Console":
    """Return a console for tables: as wide as the terminal, or of a fixed width in a file or pipe."""
    from rich.console import Console

    return Console(width=None if Console().is_terminal else width, highlight=False)


def _typed_command() -> str:
    """Return this process's command as it was typed; the shell runs an installed script as `python PATH …`."""
    python, *argv = sys.orig_argv
    return shlex.join([PROGRAM, *argv[1:]] if argv and Path(argv[0]).name == PROGRAM else [python, *argv])


def run_command(work: Callable[[], None], *, verbose: bool = False) -> None:
    """Run a job's work; report an error in one line and exit with 2 for invalid settings or input, 1 for a failure.

    The line of a failure of a run names its record in `<run>/errors/`. Elsewhere, an error that the program does not
    explain, such as one of PyTorch, is written to a temporary file with its traceback. If `verbose`, the record or the
    traceback is printed as well. Ctrl-C exits with 130, and SIGTERM with 143, and one line that repeats the command,
    which continues from what is finished.
    """
    # An encoding that lacks a character of a table must not end a job.
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", RAY_NOTICES)  # before Ray is imported, which reads it then
    stop_signal = signal.SIGINT

    def stop(number: int, frame: object) -> None:
        # As on Ctrl-C: schedulers, containers and `ray job stop` send SIGTERM.
        nonlocal stop_signal
        stop_signal = signal.Signals(number)
        signal.alarm(0)  # while Ray starts, its own handler is called first, and aborts the process after 3 seconds
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        if sys.platform == "win32":
            raise SettingsError("axml-ray runs on Linux and macOS; on Windows, install and run it within WSL")
        with _progress():
            work()
    except SettingsError as error:
        print(f"error: {with_urls(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        # Shutting down Ray takes a second or two; another signal meanwhile would print a traceback.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        print(f"stopped; run the same command to continue from here: {_typed_command()}", file=sys.stderr)
        raise SystemExit(SIGNALLED + stop_signal) from None
    except Exception as error:
        record = record_of(error)
        if verbose or (record is None and not isinstance(error, LeaseLostError)):
            keep_logs()
        if verbose:
            print(record.read_text() if record else "".join(traceback.format_exception(error)), file=sys.stderr)
        line = _explanation(error) or (_first_line(error) if record else _recorded(error, verbose))
        print(with_urls(f"error: {line}{f' (details: {record})' if record else ''}"), file=sys.stderr)
        raise SystemExit(2 if _is_unusable(error) else 1) from None


def _explanation(error: Exception) -> object:
    """Return the message of an error that needs no traceback: one of our own or of the operating system; else None."""
    if _is_unusable(error):
        path = Path(error.filename)
        hidden = LEFTOVER.fullmatch(path.name)  # the file as it is written
        place = path.with_name(hidden[1]) if hidden else path
        return f"{place}: {error.strerror}; name another place, or change what is there or who may write there"
    if isinstance(error, OSError) and error.strerror:  # a library's has none
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return error if isinstance(error, JobError) else None


def _is_unusable(error: Exception) -> TypeGuard[OSError]:
    """Return whether an error is that of a place which the user named and the system refuses."""
    return isinstance(error, OSError) and error.errno in UNUSABLE and isinstance(error.filename, str)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _recorded(error: Exception, verbose: bool) -> str:
    """Return the first line of an unexpected error, and the file to which its traceback is written unless `verbose`."""
    line = _first_line(error)
    if verbose:
        return line
    text = "".join([f"{_typed_command()}\naxml-ray {axml_ray.__version__}\n\n", *traceback.format_exception(error)])
    try:
        with NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", prefix="axml-ray-error-", suffix=".txt", delete=False
        ) as file:
            file.write(text)
    except OSError:
        print(text, file=sys.stderr)
        return line
    return f"{line} (traceback: {file.name}, or repeat the command with {VERBOSE})"


class _Lines(logging.Formatter):
    """Formats log lines, in which paths of the cache are URLs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return with_urls(super().format(record))


@contextmanager
def _progress() -> Iterator[None]:
    """Show log lines and progress on standard error: as live bars in a terminal, else as lines only."""
    console = None
    if sys.stderr.isatty():  # rich is imported only where it is needed
        from axml_ray.progress.live import ConsoleHandler, show_bars, terminal_console

        console = terminal_console()
    handler = logging.StreamHandler() if console is None else ConsoleHandler(console)
    handler.setFormatter(_Lines("%(asctime)s  %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if console is None:
        yield
    else:
        with show_bars(console):
            yield
