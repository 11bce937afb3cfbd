"""Render the page of all settings from the pydantic models: name, type, default of each preset, and description."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from axml_ray.settings import Experiment
from axml_ray.settings.presets import RECOMMENDED
from serve_app.settings import ApplicationSettings

HEAD = """# Settings

Every setting can be given in the YAML file of `--config` or on the command line, where it wins:
`--training.batch_size 64 --tree.height 0`. A list is written `--training.epochs 4,3`, and `null` means no value.
An unknown key or a wrong value is an error that names it. `--help` of each command prints the same descriptions.

The columns are the default, which is that of the preset `paper`, and the value of the preset `recommended` where it
differs ([Presets](presets.md)). This page is generated from the models in `axml_ray.settings`.
"""
SERVING = """## Server

Given as flags to `axml-ray serve`, as `key=value` to `serve run`, or under `args` in Serve's YAML file
([Serve](serving.md)).
"""


def render() -> str:
    """Return the page as Markdown."""
    top, groups = [], []
    for name, field in Experiment.model_fields.items():
        model = _model(field.annotation)
        if model is None:
            top.append((name, field))
        else:
            groups += _group(name, model)
    parts = [HEAD, "## Run", _table("", top)]
    for prefix, model, fields in groups:
        parts += [f"## {prefix}", _line(model.__doc__ or ""), _table(prefix, fields)]
    parts += [SERVING, _table("", list(ApplicationSettings.model_fields.items()), presets=False)]
    return "\n\n".join(parts) + "\n"


def names() -> list[str]:
    """Return the paths of all settings, such as `tree.height`."""
    keys = []
    for name, field in Experiment.model_fields.items():
        model = _model(field.annotation)
        if model is None:
            keys.append(name)
        else:
            keys += [f"{prefix}.{key}" for prefix, _, fields in _group(name, model) for key, _ in fields]
    return keys


def _group(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel], list[tuple[str, Any]]]]:
    """Yield the group of settings, then the groups in it."""
    own, inner = [], []
    for name, field in model.model_fields.items():
        below = _model(field.annotation)
        if below is None:
            own.append((name, field))
        else:
            inner += _group(f"{prefix}.{name}", below)
    if own:
        yield prefix, model, own
    yield from inner


def _model(annotation: Any) -> type[BaseModel] | None:
    for option in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _table(prefix: str, fields: list[tuple[str, Any]], presets: bool = True) -> str:
    head = ["setting", "type", "default", *(["recommended"] if presets else []), "meaning"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, field in fields:
        path = f"{prefix}.{name}".lstrip(".")
        preset = [_recommended(path)] if presets else []
        if preset == [_default(field)]:
            preset = [""]
        cells = [f"`{path}`", _type(field), _default(field), *preset, _line(field.description or "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _recommended(path: str) -> str:
    values: Any = RECOMMENDED
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return ""
        values = values[name]
    return _code(values)


def _default(field: Any) -> str:
    default = field.get_default(call_default_factory=True)
    return "required" if default is PydanticUndefined else _code(default)


def _code(value: Any) -> str:
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list | tuple):
        return f"`{','.join(map(str, value))}`" if value else "`[]`"
    return "`''`" if value == "" else f"`{value}`".replace("\t", "tab").replace("|", "\\|")


def _type(field: Any) -> str:
    shown = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(field.annotation))
    shown = re.sub(r"<class '(\w+)'>", r"\1", shown)
    choices = re.search(r"Literal\[(.*?)\]", shown)
    if choices:
        return ", ".join(f"`{choice}`" for choice in re.findall(r"'([^']*)'", choices[1]))
    if re.match(r"(list|tuple)\b", shown):
        return "list of " + next(kind for kind in ("int", "float", "Path", "str") if kind in shown)
    kind = next((kind for kind in ("bool", "int", "float", "Path", "str") if re.search(rf"\b{kind}\b", shown)), shown)
    return f"{kind}, or `null`" if re.search("None|Optional", shown) else kind


def _line(text: str) -> str:
    """Return a docstring on one line, safe in a cell of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
