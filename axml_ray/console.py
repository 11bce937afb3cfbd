"""What the jobs share: settings from the command line, progress as lines of text, one line for an error."""

import logging
import sys
from collections.abc import Callable

from axml_ray.configuration import from_command_line
from axml_ray.settings import Experiment, SettingsError


def job(description: str | None) -> Callable[[Callable[[Experiment], None]], Callable[[], None]]:
    """Make a function of the settings a command.

    It exits 2 for wrong settings or input and 1 for a failure, with one line on standard error.
    """

    def decorate(work: Callable[[Experiment], None]) -> Callable[[], None]:
        def main() -> None:
            settings = from_command_line(description or "")
            logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            try:
                work(settings)
            except SettingsError as error:
                print(f"error: {error}", file=sys.stderr)
                raise SystemExit(2) from None
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr)
                raise SystemExit(1) from None

        return main

    return decorate
