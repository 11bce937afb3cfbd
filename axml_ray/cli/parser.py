"""The parser of command lines: a flag for each setting, with its docstring as help, and the flags of a command."""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from pydantic import BaseModel

from axml_ray.core.errors import SettingsError
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import build, find_config, merged, read_config
from axml_ray.settings.members import kinds

VERBOSE = "--verbose"
"""Flag of every command, which `axml_ray.cli.console` takes from the command line."""
LIST = "..."
"""End of the form of a list in the help of a flag."""
LISTS = "A list is written 3,4 or as JSON, '[3,4]'; null means no value."

AddFlags = Callable[[argparse.ArgumentParser], None]
"""Adds the flags of a command to a parser."""


def from_command_line(description: str, arguments: list[str] | None = None) -> Experiment:
    """Return the settings from `--config CONFIG` and one flag per setting; on an error, print it and exit with 2."""
    return with_flags(description, lambda parser: None, arguments)[0]


def with_flags(
    description: str,
    add: AddFlags,
    arguments: list[str] | None = None,
    shown: tuple[str, ...] | None = None,
    base: dict[str, Any] | None = None,
) -> tuple[Experiment, argparse.Namespace]:
    """Return settings like `from_command_line`, and the flags that a command has in addition.

    Args:
        description: what the command does, for `--help`.
        add: adds the command's own flags to a parser.
        arguments: command-line arguments; by default the process's.
        shown: settings and groups of settings that `--help` lists; by default all.
        base: settings of a run, which hold where the config and the flags give no others; unused if the config names
            another preset.
    """
    parser = _Parser(description, epilog=LISTS)
    parser.add_argument("--config", metavar="CONFIG",
        help="YAML file of settings, or the name of a config of the package such as quickstart; the flags below "
        "override it")  # fmt: skip
    add(parser)
    try:
        parser.add_settings(shown)
        namespace = parser.parse_args(arguments)
        flags = parser.pop_settings(namespace)
        path = find_config(namespace.config) if namespace.config else None
        content = read_config(path)
        if base and content.get("preset", base["preset"]) == base["preset"]:
            content = merged(base, content)
        return build(content, path, flags=flags), namespace
    except SettingsError as error:
        parser.exit(2, f"error: {error}\n")


def only_flags(description: str, add: AddFlags, arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the flags of a command that takes no settings; on an error, print it and exit with 2."""
    parser = _Parser(description)
    add(parser)
    try:
        return parser.parse_args(arguments)
    except SettingsError as error:
        parser.exit(2, f"error: {error}\n")


class _Parser(argparse.ArgumentParser):
    """An argument parser that names the wrong flag instead of printing the usage, and accepts no abbreviations."""

    def __init__(self, description: str, epilog: str | None = None):
        # The description is a docstring, whose lines are broken already.
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, epilog=epilog, allow_abbrev=False, formatter_class=form)
        self.add_argument(VERBOSE, action="store_true", default=argparse.SUPPRESS,
            help="print the traceback of a failure")  # fmt: skip
        self._forms: dict[str, str] = {}  # by setting

    def add_settings(self, shown: tuple[str, ...] | None) -> None:
        """Add a flag of every setting; `shown` are the settings and groups that the help lists, None for all."""
        kinds()  # so that the model has the settings of plugins

        def add(group: type[BaseModel], prefix: str, section: Any) -> None:
            for key, field in group.model_fields.items():
                name, kind = f"{prefix}{key}", field.annotation
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    options = self.add_argument_group(f"{name} options", field.description)
                    add(kind, f"{name}.", options)
                    continue
                about = argparse.SUPPRESS
                if shown is None or any(f"{name}.".startswith(f"{shown_prefix}.") for shown_prefix in shown):
                    default = "null" if field.default is None else field.default
                    about = f"{field.description} (default: {default})".replace("%", "%%")
                self._forms[name] = _form(kind)
                section.add_argument(
                    f"--{name}", action="append", default=argparse.SUPPRESS, metavar=self._forms[name], help=about
                )

        add(Experiment, "", self)

    def pop_settings(self, namespace: argparse.Namespace) -> dict[str, Any]:
        """Remove the values of settings from parsed arguments, and return them, groups as dictionaries."""
        values: dict[str, Any] = {}
        for name in [name for name in self._forms if name in namespace]:
            value = _read_value(self._forms[name], vars(namespace).pop(name))
            for key in reversed(name.split(".")):
                value = {key: value}
            values = merged(values, value)
        return values

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; a flag may be written with hyphens for underscores, or the other way round."""

        def spelled(argument: str) -> str:
            flag, sign, value = argument.partition("=")
            setting = flag.removeprefix("--").replace("-", "_")
            if not flag.startswith("--"):
                return argument
            return (f"--{setting}" if setting in self._forms else flag.replace("_", "-")) + sign + value

        arguments = sys.argv[1:] if args is None else args
        return super().parse_known_args([spelled(argument) for argument in arguments], namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a SettingsError for a message of argparse."""
        unrecognized = message.removeprefix("unrecognized arguments: ")
        if unrecognized == message:
            raise SettingsError(f"command line: {message}")
        flag = unrecognized.split()[0].partition("=")[0]
        if not flag.startswith("-"):
            raise SettingsError(
                f"command line: {flag}: belongs to no flag; write a list as 3,4, a value with blanks in quotes, and a "
                "file of settings after --config"
            )
        setting = flag.lstrip("-").replace("-", "_")
        flag = f"--{setting}" if "." in flag else flag
        known = re.findall(r"(?<![\w.-])--[\w.-]+", self.format_usage())  # hidden settings are not in the usage
        settings = [f"--{name}" for name in self._forms]
        of_group = [name for name in settings if name.startswith(f"{flag}.")]
        near = of_group or difflib.get_close_matches(flag, [*known, *settings], n=1)
        fix = f"did you mean '{near[0]}'?" if near else "--help lists all"
        raise SettingsError(f"command line: {flag}: unknown setting; {fix}")


def _form(kind: Any) -> str:
    """Return the form of a value in the help, by its type: `int`, `{auto,csv}`, or `N,N,...` for a list."""
    arguments = [argument for argument in get_args(kind) if argument is not type(None)]
    origin = get_origin(kind)
    if origin is Literal:
        return "{" + ",".join(map(str, arguments)) + "}"
    if origin is Annotated:
        return _form(arguments[0])
    forms = [_form(argument) for argument in arguments if argument is not Ellipsis]
    if origin is tuple:
        item = "N" if forms[0] in ("int", "float") else "PATH" if "Path" in forms[0] else "NAME"
        return f"{item},{item},{LIST}"
    # Of several types, that of a list says the most.
    return next((form for form in forms if form.endswith(LIST)), "|".join(forms)) or kind.__name__


def _read_value(form: str, written: list[str]) -> Any:
    """Return the value of a setting, given what is written after its flag, once or several times.

    `null` is None. A list is written in JSON or with commas; if its flag is repeated, all items are one list. Other
    values stay text, which the model converts, and the last one counts.
    """
    if written[-1] == "null":
        return None
    if not form.endswith(LIST):
        return written[-1]
    items: list[Any] = []
    for text in written:
        try:
            read = json.loads(text)
        except ValueError:
            read = None
        plain = text.strip()
        if plain.startswith("[") and plain.endswith("]"):  # else they are of a glob
            plain = plain[1:-1]
        items += read if isinstance(read, list) else [item.strip() for item in plain.split(",")]
    return items
