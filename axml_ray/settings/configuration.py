"""Settings from a YAML file and the command line, with one clear error if they are invalid.

- The command line overrides the file, the file overrides the defaults: `--training.batch_size 64`.
- pydantic-settings makes one flag of every setting, with its docstring as help.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pydantic_settings
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
        add: adds the job's own flags to a parser; none may have the name of a setting.
        arguments: command-line arguments; by default the process's.
        shown: settings and groups of settings that `--help` lists; by default all.

    Returns:
        The settings, and the job's own flags.
    """
    flags = _Parser(description, add_help=False)
    flags.add_argument("--config", metavar="CONFIG",
        help="YAML file of settings, or the name of a config of the package such as quickstart; the flags below "
        "override it")  # fmt: skip
    add(flags)
    try:
        given, rest = flags.parse_known_args(sys.argv[1:] if arguments is None else arguments)
        parser = _Parser(description, flags, shown=shown, epilog=LISTS)
        path = find_config(given.config) if given.config else None
        return _build(_read_config(path), path, flags=_read_flags(parser, rest)), given
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def only_flags(
    description: str, add: Callable[[argparse.ArgumentParser], None], arguments: list[str] | None = None
) -> argparse.Namespace:
    """Return the flags of a job that takes no settings; on an error, print it and exit with 2."""
    flags = _Parser(description)
    add(flags)
    try:
        return flags.parse_args(arguments)
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
        parents: parsers whose flags are included.
        add_help: whether it has `--help`.
        shown: settings and groups of settings that `--help` lists, besides the parents' flags; by default all.
        epilog: last lines of `--help`.
    """

    def __init__(
        self,
        description: str,
        *parents: argparse.ArgumentParser,
        add_help: bool = True,
        shown: tuple[str, ...] | None = None,
        epilog: str | None = None,
    ):
        # The description is a docstring, whose lines are broken already.
        super().__init__(
            description=description,
            parents=parents,
            add_help=add_help,
            allow_abbrev=False,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if add_help:
            self.add_argument(VERBOSE, action="store_true", default=argparse.SUPPRESS,
                help="print the traceback of a failure")  # fmt: skip
        self._shown = shown
        self._own = {word for parent in parents for action in parent._actions for word in action.option_strings}
        self._own |= {"-h", "--help", VERBOSE}

    def add_setting(self, group: Any, *words: str, **options: Any) -> None:
        """Add the flag of a setting to this parser or to one of its groups; pydantic-settings calls this.

        A flag of the job itself takes precedence: pydantic-settings adds a hidden flag for each group, such as
        `--tree`, which `axml-ray inspect` uses otherwise.
        """
        if not self._own & set(words):
            group.add_argument(*words, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; a flag may be written with hyphens for underscores, or the other way round."""
        arguments = sys.argv[1:] if args is None else args
        return super().parse_known_args([self._as_added(word) for word in arguments], namespace)

    def _as_added(self, word: str) -> str:
        flag, sign, value = word.partition("=")
        if not flag.startswith("--") or flag in self._option_string_actions:
            return word
        spelled = (f"--{flag[2:].replace('-', '_')}", f"--{flag[2:].replace('_', '-')}")
        known = [each for each in spelled if each in self._option_string_actions]
        return f"{known[0]}{sign}{value}" if known else word

    def format_usage(self) -> str:
        """Return the usage without hidden flags."""
        self._tidy()
        return super().format_usage()

    def format_help(self) -> str:
        """Return the help without hidden flags, and with lists in the form in which they are written."""
        self._tidy()
        return super().format_help()

    def _tidy(self) -> None:
        """Hide the flags that are not listed, and replace pydantic's names of list types."""
        for action in self._actions:
            kind = str(action.metavar)
            if "tuple[" in kind:
                one = "PATH" if "Path" in kind else "NAME" if "str" in kind else "N"
                action.metavar = f"{one},{one},..."
            if self._shown is not None and not self._is_shown(action):
                action.help = argparse.SUPPRESS
        # A group whose flags are all hidden would still print its heading.
        self._action_groups = [
            group
            for group in self._action_groups
            if not group._group_actions or any(one.help != argparse.SUPPRESS for one in group._group_actions)
        ]

    def _is_shown(self, action: argparse.Action) -> bool:
        names = {word.removeprefix("--") for word in action.option_strings}
        listed = self._shown or ()
        return bool((self._own | {"--config"}) & set(action.option_strings)) or any(
            name == setting or name.startswith(f"{setting}.") for name in names for setting in listed
        )

    def error(self, message: str) -> NoReturn:
        """Raise a SettingsError for a message of argparse."""
        unrecognized = message.removeprefix("unrecognized arguments: ")
        if unrecognized != message:
            flag = unrecognized.split()[0].partition("=")[0]
            if flag.startswith("-"):
                if renamed := describe_renamed(flag.lstrip("-").replace("-", "_")):
                    raise SettingsError(f"command line: --{renamed}")
                near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
                fix = f"did you mean '{near[0]}'?" if near else "--help lists all"
                raise SettingsError(f"command line: {flag}: unknown setting; {fix}")
            raise SettingsError(
                f"command line: {flag}: belongs to no flag; write a list as 3,4, a value with blanks in quotes, and a "
                "file of settings after --config"
            )
        raise SettingsError(f"command line: {message}")


def _read_flags(parser: _Parser, arguments: list[str]) -> dict[str, Any]:
    """Add a flag of every setting to a parser; return the values that are given, by name, groups as dictionaries.

    Raises:
        SettingsError: a flag is unknown, lacks its value, or gives a group anything but a JSON object.
    """
    kinds()  # so that the model has the settings of plugins
    source: Any = pydantic_settings.CliSettingsSource(
        Experiment,
        cli_parse_args=arguments,
        root_parser=parser,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_parse_none_str="null",
        add_argument_method=parser.add_setting,
    )
    try:
        values: dict[str, Any] = source()
    except pydantic_settings.SettingsError as error:
        raise SettingsError(f"command line: {error}; a group of settings is a JSON object") from None
    return values


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

    `config` is the path of the file, for messages; `flags` are the values of `_read_flags`.
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
