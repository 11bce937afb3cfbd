"""Settings from a YAML file, with one clear error if they are invalid.

The command line (`axml_ray.cli.parser`) overrides the file, the file overrides the preset and its defaults.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute, is_url, paths_below
from axml_ray.core.run_layout import RunLayout
from axml_ray.core.run_manifest import project_of, read_run_manifest
from axml_ray.settings import Experiment
from axml_ray.settings.base import explain
from axml_ray.settings.members import kinds
from axml_ray.settings.presets import preset_values

FREE = ("resources", "evaluation", "tracking", "runs", "corpora")
"""Groups of settings that may change when a run is started again or evaluated: no trained part depends on them."""
DEFAULT_PRESET = "paper"
SHIPPED = Path(__file__).parent / "configs"
"""Directory of the configs that are part of the package."""


def load(config: str | Path | None = None, **overrides: Any) -> Experiment:
    """Return the settings in a YAML file, with overrides.

    Args:
        config: path of the file, or name of a config that is part of the package; None starts from the preset alone.
        overrides: settings by name, groups as dictionaries.

    Raises:
        SettingsError: the file is missing or not YAML, or a setting is unknown or has a wrong value.
    """
    config = find_config(config) if config else None
    return build(read_config(config), config, overrides=overrides)


def find_config(config: str | Path) -> Path:
    """Return the path of a config: a file that exists, perhaps at a URL, or the config of this name in the package.

    Raises:
        SettingsError: there is neither.
    """
    path = Path(config)
    if is_url(config) or (not path.exists() and absolute(config).exists()):  # a submitted job runs in a copy
        path = absolute(config)
    storage.fetch(path)
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    if path.exists() and not (path.is_dir() and str(config) in names):
        return path
    if str(config) in names:
        return SHIPPED / f"{config}.yaml"
    neighbours = sorted(map(str, [*path.parent.glob("*.yaml"), *path.parent.glob("*.yml")]))
    near = difflib.get_close_matches(str(path), neighbours, n=1) or difflib.get_close_matches(str(config), names, n=1)
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


def read_config(path: Path | None) -> dict[str, Any]:
    """Return the settings in a YAML file; none without a file.

    Relative paths start at the project's directory, and those in the settings of a run at that run's project; the run
    is the one in the file's directory, which may have been moved or renamed.
    """
    if path is None:
        return {}
    content = read_yaml(path)
    layout = RunLayout(path.parent)
    storage.fetch(layout.manifest)
    if path != layout.settings or not layout.manifest.is_file():
        return content
    settings = build(content, path)
    project = project_of(absolute(path.parent), Path(content.get("corpora", ".")) / settings.corpus.name)
    with paths_below(project):
        return moved_to(build(content, path), absolute(path.parent)).model_dump()


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


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in `base`, replaced by those in `over` group by group."""
    common = [key for key in base if isinstance(base[key], dict) and isinstance(over.get(key), dict)]
    return {**base, **over, **{key: merged(base[key], over[key]) for key in common}}


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], free: Collection[str], prefix: str = ""
) -> list[str]:
    """Return the paths of the keys in which two nested mappings differ, except for those in `free`."""
    changed = []
    for key in before.keys() | now.keys():
        place, old, new = f"{prefix}{key}", before.get(key), now.get(key)
        if place not in free and old != new:
            if isinstance(old, dict) and isinstance(new, dict):
                changed += differences(old, new, free, f"{place}.")
            else:
                changed.append(place)
    return changed


def by_path(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by their paths, such as `tree.height`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from by_path(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def build(
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
    kinds()  # so that the model has the settings of plugins
    flags = flags or {}
    chosen = merged(merged(content, overrides), flags)
    preset = chosen.get("preset", DEFAULT_PRESET)
    # The model refuses an unknown preset, like any other wrong value.
    values = merged(preset_values(preset, chosen), chosen) if isinstance(preset, str) else chosen
    try:
        return Experiment(**{str(key): value for key, value in values.items()}).with_given(dict(by_path(chosen)))
    except ValidationError as error:
        raise SettingsError(_explain(error, config, set(dict(by_path(flags))))) from None


def _explain(error: ValidationError, config: str | Path | None, flags: set[str]) -> str:
    """Return the message of a pydantic error: the file or command line, the key, what is wrong, and the value.

    `flags` are the keys of the settings that the command line gives.
    """
    unknown = ("extra_forbidden", "invalid_key")  # an unknown key, and one that is no string
    problem = min(error.errors(), key=lambda problem: problem["type"] not in unknown)
    where = ".".join(str(key) for key in problem["loc"])
    message = explain(problem)
    # Validators of several settings name the key themselves, at the beginning of their message.
    names_key = not where or message.startswith(where + ".")
    key = message.split()[0].rstrip(":") if names_key else ".".join(str(key) for key in problem["loc"][:2])
    place = "command line: " if {key, where} & flags else f"{config}: " if config else ""
    if problem["type"] in unknown:
        group: Any = Experiment
        for name in problem["loc"][:-1]:
            group = group.model_fields[str(name)].annotation
        return place + _unknown(where, group)
    if problem["type"] == "model_type":
        message = "expected a group of 'key: value' lines"
    # A URL, which may contain credentials, is named by the message as far as it may be.
    is_left_out = isinstance(problem["input"], dict | BaseModel) or "://" in str(problem["input"])
    value = "" if is_left_out else f" (given: {problem['input']!r})"
    return place + message if names_key else f"{place}{where}: {message}{value}"


def _unknown(key: str, group: type[BaseModel]) -> str:
    """Return the message for an unknown setting, with the most similar one of its group, or all of them."""
    groups = [
        name for name, field in group.model_fields.items() if key in getattr(field.annotation, "model_fields", ())
    ]
    if groups:
        return f"{key}: is a setting of the group {groups[0]}; indent it below '{groups[0]}:'"
    near = difflib.get_close_matches(key.rpartition(".")[2], group.model_fields, n=1)
    fix = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(group.model_fields)}"
    return f"{key}: unknown setting; {fix}"
