"""Settings from a YAML file and the command line, with one clear error if they are invalid.

- The command line overrides the file, the file overrides the defaults: `--training.batch_size 64`.
- Every setting has a flag, with its docstring as help.
"""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute, paths_below
from axml_ray.core.run_layout import RunLayout
from axml_ray.core.run_manifest import project_of, read_run_manifest
from axml_ray.settings import Experiment, Settings
from axml_ray.settings.members import kinds
from axml_ray.settings.presets import PRESETS
from axml_ray.settings.renamed import describe_renamed

FREE = ("resources", "evaluation", "tracking", "runs", "corpora")
"""Groups of settings that may change when a run is started again or evaluated: no trained part depends on them."""
DEFAULT_PRESET = "paper"
VERBOSE = "--verbose"
"""Flag of every command, which `axml_ray.cli.console` takes from the command line."""
SHIPPED = Path(__file__).parent / "configs"
"""Directory of the configs that are part of the package."""
GROUP, LIST = "JSON", "..."
"""Form of a group of settings, and end of the form of a list, in the help of a flag."""
LISTS = "A list is written 3,4 or as JSON, '[3,4]'; null means no value."


def load(config: str | Path | None = None, **overrides: Any) -> Experiment:
    """Return the settings in a YAML file, with overrides.

    Args:
        config: path of the file, or name of a config that is part of the package; None starts from the preset alone.
        overrides: settings by name, groups as dictionaries.

    Raises:
        SettingsError: the file is missing or not YAML, or a setting is unknown or has a wrong value.
    """
    config = find_config(config) if config else None
    return _build(_read_config(config), config, overrides=overrides)


def find_config(config: str | Path) -> Path:
    """Return the path of a config: a file that exists, otherwise the config of this name in the package.

    Raises:
        SettingsError: there is neither.
    """
    path = Path(config)
    names = sorted(each.stem for each in SHIPPED.glob("*.yaml"))
    if path.exists() and not (path.is_dir() and str(config) in names):
        return path
    if str(config) in names:
        return SHIPPED / f"{config}.yaml"
    near = difflib.get_close_matches(path.stem, names, n=1)
    fix = f"did you mean '--config {near[0]}'?" if near else f"name a YAML file, or one of {', '.join(names)}"
    raise SettingsError(f"{config}: there is no such file or config; {fix}")


def read_settings(directory: Path) -> Experiment:
    """Return the settings of a run, adapted to the place where its directory is now.

    Raises:
        SettingsError: the directory is not a run, or one of another version.
    """
    read_run_manifest(directory)
    return moved_to(load(RunLayout(directory).settings), directory)


def moved_to(settings: Experiment, directory: Path) -> Experiment:
    """Return the settings of a run whose directory was moved to the absolute path `directory`."""
    return settings.model_copy(update={"runs": directory.parent, "name": directory.name})


def from_command_line(description: str, arguments: list[str] | None = None) -> Experiment:
    """Return the settings from `--config CONFIG` and one flag per setting; on an error, print it and exit with 2."""
    return with_flags(description, lambda parser: None, arguments)[0]


def with_flags(
    description: str,
    add: Callable[[argparse.ArgumentParser], None],
    arguments: list[str] | None = None,
    shown: tuple[str, ...] | None = None,
) -> tuple[Experiment, argparse.Namespace]:
    """Return settings like `from_command_line`, for a job that has flags in addition to the settings.

    Args:
        description: what the job does, for `--help`.
        add: adds the job's own flags to a parser; one that is called like a group of settings replaces its flag.
        arguments: command-line arguments; by default the process's.
        shown: settings and groups of settings that `--help` lists; by default all.

    Returns:
        The settings, and the job's own flags.
    """
    parser = _Parser(description, epilog=LISTS)
    parser.add_argument("--config", metavar="CONFIG",
        help="YAML file of settings, or the name of a config of the package such as quickstart; the flags below "
        "override it")  # fmt: skip
    add(parser)
    try:
        parser.add_settings(shown)
        given = parser.parse_args(arguments)
        flags = parser.pop_settings(given)
        path = find_config(given.config) if given.config else None
        return _build(_read_config(path), path, flags=flags), given
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def only_flags(
    description: str, add: Callable[[argparse.ArgumentParser], None], arguments: list[str] | None = None
) -> argparse.Namespace:
    """Return the flags of a job that takes no settings; on an error, print it and exit with 2."""
    parser = _Parser(description)
    add(parser)
    try:
        return parser.parse_args(arguments)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _read_config(path: Path | None) -> dict[str, Any]:
    """Return the settings in a YAML file; none without a file.

    Relative paths start at the project's directory, and those in the settings of a run at that run's project.
    """
    if path is None:
        return {}
    content = read_yaml(path)
    if path != RunLayout(path.parent).settings or not RunLayout(path.parent).manifest.is_file():
        return content
    settings = _build(content, path)
    project = project_of(absolute(path.parent), Path(content.get("corpora", ".")) / settings.corpus.name)
    with paths_below(project):
        return _build(content, path).model_dump()


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        SettingsError: the file is missing, not YAML, or not a mapping.
    """
    path = Path(path)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); --config takes a YAML file") from None
    # PyYAML raises a ValueError for a date such as 2024-13-01, and a RecursionError for deeply nested lists.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected 'key: value' lines, found {type(content).__name__}")
    return content


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys, of which PyYAML silently keeps the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping as it is written, before merge keys (`<<`) are resolved, which may repeat keys."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"duplicate key {key.value}; merge both into one", problem_mark=key.start_mark
                )
            keys.add(key.value)
        return node


class _Parser(argparse.ArgumentParser):
    """An argument parser that names the wrong flag instead of printing the usage, and accepts no abbreviations.

    Args:
        description: description of the command.
        epilog: last lines of `--help`.
    """

    def __init__(self, description: str, epilog: str | None = None):
        # The description is a docstring, whose lines are broken already.
        super().__init__(
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument(VERBOSE, action="store_true", default=argparse.SUPPRESS,
            help="print the traceback of a failure")  # fmt: skip
        self._forms: dict[str, str] = {}

    def add_settings(self, shown: tuple[str, ...] | None) -> None:
        """Add a flag of every setting, and a hidden one of every group, which takes a JSON object.

        `shown` are the settings and groups of settings that the help lists; None lists all.
        """
        kinds()  # so that the model has the settings of plugins
        job_flags = self.flags()

        def add(group: type[BaseModel], prefix: str, section: Any) -> None:
            for key, field in group.model_fields.items():
                name, kind = f"{prefix}{key}", field.annotation
                is_group = isinstance(kind, type) and issubclass(kind, BaseModel)
                form, about = GROUP if is_group else _form(kind), argparse.SUPPRESS
                if not is_group and (shown is None or any(f"{name}.".startswith(f"{one}.") for one in shown)):
                    default = "null" if field.default is None else field.default
                    about = f"{field.description} (default: {default})".replace("%", "%%")
                if f"--{name}" not in job_flags:
                    self._forms[name] = form
                    section.add_argument(
                        f"--{name}", action="append", default=argparse.SUPPRESS, metavar=form, help=about
                    )
                if is_group:
                    add(
                        cast(type[BaseModel], kind),
                        f"{name}.",
                        self.add_argument_group(f"{name} options", field.description),
                    )

        add(Experiment, "", self)

    def pop_settings(self, given: argparse.Namespace) -> dict[str, Any]:
        """Remove the values of settings from parsed arguments, and return them, groups as dictionaries.

        Raises:
            SettingsError: a group is given anything but a JSON object.
        """
        values: dict[str, Any] = {}
        for name in [name for name in self._forms if name in given]:  # a group before its settings
            value = _read_value(name, self._forms[name], vars(given).pop(name))
            for key in reversed(name.split(".")):
                value = {key: value}
            values = _merged(values, value)
        return values

    def flags(self) -> list[str]:
        """Return the flags that the usage lists."""
        return re.findall(r"(?<![\w.-])--[\w.-]+", self.format_usage())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; a flag may be written with hyphens for underscores, or the other way round."""

        def spelled(word: str) -> str:
            flag, sign, value = word.partition("=")
            setting = flag.removeprefix("--").replace("-", "_")
            if not flag.startswith("--"):
                return word
            return (f"--{setting}" if setting in self._forms else flag.replace("_", "-")) + sign + value

        arguments = sys.argv[1:] if args is None else args
        return super().parse_known_args([spelled(word) for word in arguments], namespace)

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
        if renamed := describe_renamed(setting):
            raise SettingsError(f"command line: --{renamed}")
        flag = f"--{setting}" if "." in flag else flag
        near = difflib.get_close_matches(flag, [*self.flags(), *(f"--{name}" for name in self._forms)], n=1)
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
        item = "N" if forms[0] == "int" else "PATH" if "Path" in forms[0] else "NAME"
        return f"{item},{item},{LIST}"
    # Of several types, that of a list says the most.
    return next((form for form in forms if form.endswith(LIST)), "|".join(forms)) or kind.__name__


def _read_value(name: str, form: str, written: list[str]) -> Any:
    """Return the value of a setting, given what is written after its flag, once or several times.

    `null` is None. A list is written in JSON or with commas; if its flag is repeated, all items are one list. Other
    values stay text, which the model converts, and the last one counts.

    Raises:
        SettingsError: a group is given anything but a JSON object.
    """
    if written[-1] == "null":
        return None
    if form != GROUP and not form.endswith(LIST):
        return written[-1]
    items: list[Any] = []
    for text in written:
        try:
            read = json.loads(text)
        except ValueError:
            read = None
        if form == GROUP and isinstance(read, dict):
            return read
        items += read if isinstance(read, list) else [item.strip() for item in text.strip("[]").split(",")]
    if form == GROUP:
        raise SettingsError(f"command line: --{name} {written[-1]}: a group of settings is a JSON object")
    return items


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in `base`, replaced by those in `over` group by group."""
    both = {key: _merged(base[key], over[key]) for key in base.keys() & over.keys() if isinstance(over[key], dict)}
    return {**base, **over, **both}


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of nested settings, such as `tree.height`."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _build(
    content: dict[str, Any],
    config: str | Path | None,
    *,
    flags: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
) -> Experiment:
    """Validate settings: a preset's, overridden by a file's content, by `overrides`, and by those of the command line.

    `config` is the path of the file, for messages; `flags` are the settings of the command line.
    """
    overrides = overrides or {}
    for given, place in ((content, f"{config}: "), (overrides, "")):
        if renamed := [message for key in _keys(given) if (message := describe_renamed(key))]:
            raise SettingsError(place + "; ".join(renamed))
    _check_groups(content, config)
    kinds()  # so that the model has the settings of plugins
    flags = flags or {}
    chosen = _merged(_merged(content, overrides), flags)
    preset = chosen.get("preset", DEFAULT_PRESET)
    # The model refuses an unknown preset, like any other wrong value.
    values = _merged(PRESETS.get(preset, {}), chosen) if isinstance(preset, str) else chosen
    try:
        return Experiment(**values).with_given(_keys(chosen))
    except ValidationError as error:
        raise SettingsError(_explain(error, config, set(_keys(flags)))) from None


def _check_groups(content: dict[str, Any], config: str | Path | None) -> None:
    """Check that a file's top-level keys are known, and that groups of settings are mappings."""
    for key in content.keys() - Experiment.model_fields.keys():
        raise SettingsError(f"{config}: {_unknown(str(key), Experiment)}")
    for key, field in Experiment.model_fields.items():
        is_group = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
        if is_group and not isinstance(content.get(key, {}), dict):
            raise SettingsError(f"{config}: {key}: expected a group of 'key: value' lines")


def _explain(error: ValidationError, config: str | Path | None, flags: set[str]) -> str:
    """Return the message of a pydantic error: the file or command line, the key, what is wrong, and the value.

    `flags` are the keys of the settings that the command line gives.
    """
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ").replace("tuple", "list").replace("Tuple", "List")
    # Validators of several settings name the key themselves, at the beginning of their message.
    names_key = not where or message.startswith(where + ".")
    key = message.split()[0].rstrip(":") if names_key else ".".join(str(part) for part in problem["loc"][:2])
    place = "command line: " if {key, where} & flags else f"{config}: " if config else ""
    if problem["type"] == "extra_forbidden":
        group: Any = Experiment
        for part in problem["loc"][:-1]:
            group = group.model_fields[str(part)].annotation
        return place + _unknown(where, group)
    value = "" if isinstance(problem["input"], dict | BaseModel) else f" (given: {problem['input']!r})"
    return place + message if names_key else f"{place}{where}: {message}{value}"


def _unknown(key: str, group: type[BaseModel]) -> str:
    """Return the message for an unknown setting, with the most similar one of its group, or all of them."""
    near = difflib.get_close_matches(key.rpartition(".")[2], group.model_fields, n=1)
    fix = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(group.model_fields)}"
    return f"{key}: unknown setting; {fix}"
