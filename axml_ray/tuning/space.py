"""What a sweep draws from: plain functions that draw settings by their paths, one after the other.

    def space(draw):
        height = draw.suggest_int("tree.height", 0, 2)
        if height:
            draw.suggest_categorical("tree.cluster_size", [8, 16, 32])

What is drawn may depend on what was drawn before, so combinations that make no sense are never drawn. A number at the
end of a path is a place in a list: `training.epochs.0`, `training.epochs.1`; the list drawn replaces the config's.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna

from axml_ray.configuration import load
from axml_ray.settings import Experiment, SettingsError, absolute

GROUPS = ("tree", "network", "training", "ensemble")
KEPT = ("training.documents", "ensemble.top_labels", "ensemble.combiner")
"""Settings of these groups that a sweep doesn't draw: scores with others couldn't be compared."""
FUNCTION = "space"


class Draw:
    """Draws the settings of one trial, each of them once.

    Args:
        trial: Optuna's, which says what is drawn.

    Attributes:
        parameters: what was drawn and fixed so far, by path.
    """

    def __init__(self, trial: optuna.trial.BaseTrial):
        self._trial = trial
        self.parameters: dict[str, Any] = {}

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number from `low` to `high`, both included; with `log`, small ones as often as large ones."""
        value = self.parameters[name] = self._trial.suggest_int(name, low, high, step=step, log=log)
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number from `low` to `high`."""
        value = self.parameters[name] = self._trial.suggest_float(name, low, high, step=step, log=log)
        return value

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of `choices` (texts, numbers, truth values), which must be the same whenever the name is drawn."""
        value = self.parameters[name] = self._trial.suggest_categorical(name, choices)
        return value

    def fix(self, name: str, value: Any) -> None:
        """Give a setting a value that follows from what was drawn, whatever the config says."""
        self.parameters[name] = value


Function = Callable[[Draw], None]


@dataclass(frozen=True)
class Space:
    """Functions that draw, one after the other.

    Attributes:
        names: as the user gave them.
        functions: theirs.
        mark: changes with the text of their modules.
    """

    names: tuple[str, ...]
    functions: tuple[Function, ...]
    mark: str

    @classmethod
    def load(cls, names: Sequence[str]) -> "Space":
        """The spaces of some modules (`tune_spaces.tree`) or files (`my_space.py`), `:function` being `:space`.

        Raises:
            SettingsError: there is no such module, file or function, or it can't be imported.
        """
        if not names:
            raise SettingsError("--space: name at least one, such as tune_spaces.tree or a file of your own")
        functions, marks = [], hashlib.sha256()
        for name in names:
            place, _, wanted = name.partition(":")
            module = _module(place)
            function = getattr(module, wanted or FUNCTION, None)
            if not callable(function):
                raise SettingsError(f"--space {name}: {place} has no function {wanted or FUNCTION}(draw)")
            functions.append(function)
            marks.update(inspect.getsource(module).encode())
        return cls(tuple(names), tuple(functions), marks.hexdigest()[:12])

    @property
    def short_name(self) -> str:
        """For a directory: `tree` for tune_spaces.tree, `tree-shape` for its function shape."""
        parts = [name.removesuffix(".py").replace("\\", "/").rpartition("/")[2] for name in self.names]
        return "-".join(part.removeprefix("tune_spaces.").replace(".py:", "-").replace(":", "-") for part in parts)

    def of_settings(self, base: Experiment) -> dict[str, Any] | None:
        """The parameters that an experiment has; None if the space can't draw them.

        Args:
            base: the experiment.
        """
        values: dict[str, Any] = {}
        for group in GROUPS:
            # Not its dump, in which some that are as by default are left out.
            for key, value in getattr(base, group):
                places = enumerate(value) if isinstance(value, tuple | list) else ()
                values |= {f"{group}.{key}": value, **{f"{group}.{key}.{place}": one for place, one in places}}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # how Optuna says that a value is out of range
                drawn = self.draw(optuna.trial.FixedTrial(values))
        except (ValueError, UserWarning):
            return None
        # Not `base` itself, some of which isn't written with its settings.
        return drawn if settings_of(base, drawn) == settings_of(base, {}) else None

    def draw(self, trial: optuna.trial.BaseTrial) -> dict[str, Any]:
        """The parameters of a trial.

        Raises:
            SettingsError: one isn't a plain value.
        """
        draw = Draw(trial)
        for function in self.functions:
            function(draw)
        for name, value in draw.parameters.items():
            if not isinstance(value, str | int | float | None):
                raise SettingsError(
                    f"the space draws {value!r} for {name}, which is no text, number, truth value or None; draw a list "
                    f"by its places, {name}.0 and on"
                )
        return draw.parameters


def settings_of(base: Experiment, parameters: Mapping[str, Any]) -> Experiment:
    """The experiment with what was drawn in the place of its own.

    Args:
        base: what is not drawn.
        parameters: values by the paths of their settings.

    Raises:
        SettingsError: a path names no setting that a sweep may draw, or the settings are wrong together.
    """
    values: dict[str, Any] = base.model_dump()
    lists: dict[tuple[str, str], dict[int, Any]] = {}
    for path, value in parameters.items():
        group, _, rest = path.partition(".")
        if group not in GROUPS or not rest or path in KEPT:
            raise SettingsError(f"{path}: not a setting that a sweep draws; those of {', '.join(GROUPS)} are")
        key, _, place = rest.rpartition(".")
        if key and place.isdecimal():
            lists.setdefault((group, key), {})[int(place)] = value
        else:
            values[group][rest] = value
    for (group, key), places in lists.items():
        if sorted(places) != list(range(len(places))):
            raise SettingsError(f"{group}.{key}: places {sorted(places)} were drawn; draw them from 0 on, without gaps")
        values[group][key] = [places[place] for place in range(len(places))]
    try:
        return load(None, **values)
    except SettingsError as error:
        drawn = ", ".join(f"{path}={value}" for path, value in parameters.items())
        raise SettingsError(f"the space drew settings that are wrong together ({drawn}): {error}") from None


def _module(place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            # In a submitted job the current directory is a snapshot of the user's, and paths begin elsewhere.
            path = Path(place).resolve() if Path(place).is_file() else absolute(place)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise SettingsError(f"--space {place}: there is no file {path}")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        # A script's own directory is searched, but spaces lie beside jobs/ or where the user is.
        for folder in (str(Path(__file__).parents[2]), str(Path.cwd())):
            if folder not in sys.path:
                sys.path.append(folder)
        return importlib.import_module(place)
    except SettingsError:
        raise
    except ModuleNotFoundError as error:
        raise SettingsError(f"--space {place}: {error}; give a module such as tune_spaces.tree or a .py file") from None
    except Exception as error:  # whatever a user's file raises
        raise SettingsError(f"--space {place}: cannot be imported ({type(error).__name__}: {error})") from None
