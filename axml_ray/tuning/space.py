"""Search spaces: plain functions that draw settings by their paths, one after the other.

    def space(draw):
        height = draw.suggest_int("tree.height", 0, 2)
        if height:
            draw.suggest_categorical("tree.cluster_size", [8, 16, 32])

A draw may depend on earlier ones, so combinations that make no sense are never drawn. A number at the end of a path is
an index into a list, as in `training.epochs.0` and `training.epochs.1`; the drawn list replaces the config's.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna

from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load

GROUPS = ("tree", "network", "training", "ensemble")
KEPT = ("training.documents", "ensemble.top_labels", "ensemble.combiner")
"""Settings of these groups that a sweep must not draw, since scores with different values could not be compared."""
FUNCTION = "space"
TRIED = 50
"""Number of draws that are checked before a sweep starts."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Draw:
    """Draws the settings of one trial with the methods of an Optuna trial: `suggest_int`, `suggest_float` and
    `suggest_categorical`, each with the path of a setting as name."""

    def __init__(self, trial: optuna.trial.BaseTrial):
        self._trial, self._fixed = trial, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)

    def fix(self, name: str, value: Any) -> None:
        """Set a setting to a value that follows from earlier draws; it replaces the config's."""
        self._fixed[name] = value

    @property
    def parameters(self) -> dict[str, Any]:
        """Values drawn and fixed so far, by path."""
        return {**self._trial.params, **self._fixed}


Function = Callable[[Draw], None]


@dataclass(frozen=True)
class Space:
    """A search space: functions that are called one after the other."""

    names: tuple[str, ...]
    """Names of the functions as the user gave them."""
    functions: tuple[Function, ...]
    fingerprint: str
    """Hash of the text of their modules, and of some draws, which other modules and files may have a part in."""

    @classmethod
    def load(cls, names: Sequence[str]) -> "Space":
        """Load the spaces of some modules (`tune_spaces.tree`) or files (`my_space.py`).

        A name has `:function` appended unless the function is `space`.

        Raises:
            SettingsError: a module, file or function does not exist or cannot be imported.
        """
        if not names:
            raise SettingsError("--space: name at least one, such as tune_spaces.tree or a file of your own")
        functions, digest = [], hashlib.sha256()
        for name in names:
            place, _, function_name = name.partition(":")
            module = _import(place)
            function = getattr(module, function_name or FUNCTION, None)
            if not callable(function):
                raise SettingsError(
                    f"--space {name}: {place} has no function {function_name or FUNCTION}(draw); define it, or name "
                    f"another one as {place}:NAME"
                )
            functions.append(function)
            digest.update(inspect.getsource(module).encode())
        space = cls(tuple(names), tuple(functions), "")
        for drawn in space.draws(seed=0):
            digest.update(repr(drawn).encode())
        return replace(space, fingerprint=digest.hexdigest()[:12])

    def __call__(self, trial: optuna.trial.BaseTrial) -> dict[str, Any]:
        """Return the config of a trial, as OptunaSearch asks for it: its number and its parameters."""
        return {"number": trial.number, "parameters": self.draw(trial)}

    def __reduce__(self) -> tuple[Any, ...]:
        # OptunaSearch pickles its space, and the module of a user's file cannot be imported by name.
        return Space.load, (self.names,)

    @property
    def short_name(self) -> str:
        """The name for a directory: `tree` for tune_spaces.tree, `tree-shape` for its function `shape`."""
        names = [name.removesuffix(".py").replace("\\", "/").rpartition("/")[2] for name in self.names]
        return "-".join(name.removeprefix("tune_spaces.").replace(".py:", "-").replace(":", "-") for name in names)

    def of_settings(self, base: Experiment) -> dict[str, Any] | None:
        """Return the parameters that draw the settings of an experiment; None if the space cannot draw them."""
        values: dict[str, Any] = {}
        for group in GROUPS:
            # Read from the object, since a dump omits some settings that have their default.
            for key, value in getattr(base, group):
                places = enumerate(value) if isinstance(value, tuple | list) else ()
                values |= {
                    f"{group}.{key}": value,
                    **{f"{group}.{key}.{place}": place_value for place, place_value in places},
                }
        # Optuna only warns of a value that is out of range; `create_trial` raises. `catch_warnings` would change the
        # filters of all threads.
        warnings.filterwarnings("ignore", "The value .* of the parameter .* is out of the range", UserWarning)
        trial = optuna.trial.FixedTrial(values)
        try:
            drawn = self.draw(trial)
            optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=0.0)
        except Exception:  # the user's function need not take values out of its ranges
            return None
        # Compared with a rebuilt `base`, since some of its attributes are not among the settings that are dumped.
        return drawn if apply_parameters(base, drawn) == apply_parameters(base, {}) else None

    def draws(self, seed: int) -> Iterator[dict[str, Any]]:
        """Yield the parameters of `TRIED` trials that are drawn at random.

        Raises:
            SettingsError: the space raises an error, or draws nothing.
        """
        study, place = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed)), " ".join(self.names)
        for _ in range(TRIED):
            try:
                drawn = self.draw(study.ask())
            except Exception as error:  # whatever a user's function raises
                raise SettingsError(f"--space {place}: {type(error).__name__}: {error}") from None
            if not drawn:
                raise SettingsError(f"--space {place}: it draws nothing; call draw.suggest_… at least once")
            yield drawn

    def draw(self, trial: optuna.trial.BaseTrial) -> dict[str, Any]:
        """Draw the parameters of a trial.

        Raises:
            SettingsError: a value is not a string, number, boolean or None.
        """
        draw = Draw(trial)
        for function in self.functions:
            function(draw)
        parameters = draw.parameters
        for name, value in parameters.items():
            if not isinstance(value, str | int | float | None):
                raise SettingsError(
                    f"the space draws {value!r} for {name}, which is no string, number, boolean or None; draw the "
                    f"items of a list one by one, from {name}.0 on"
                )
        return parameters


def apply_parameters(base: Experiment, parameters: Mapping[str, Any]) -> Experiment:
    """Return an experiment with drawn values, by the paths of their settings, in place of its own.

    Raises:
        SettingsError: a path is not a setting that a sweep may draw, or the settings are invalid together.
    """
    # An address of a tracker that the environment gives is no path, and may have credentials in it.
    values: dict[str, Any] = base.model_dump(exclude={"tracking"})
    lists: dict[tuple[str, str], dict[int, Any]] = {}
    for path, value in parameters.items():
        group, _, rest = path.partition(".")
        if group not in GROUPS or not rest or path in KEPT:
            raise SettingsError(f"{path}: not a setting that a sweep can draw; draw settings of {', '.join(GROUPS)}")
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
        return load(None, **values).model_copy(update={"tracking": base.tracking})
    except SettingsError as error:
        drawn = ", ".join(f"{path}={value}" for path, value in parameters.items())
        raise SettingsError(f"the space drew settings that are wrong together ({drawn}): {error}") from None


def check_space(space: Space, base: Experiment, seed: int) -> None:
    """Draw some trials and validate their settings before the sweep is started.

    Raises:
        SettingsError: the space raises an error, or draws invalid settings.
    """
    for drawn in space.draws(seed):
        apply_parameters(base, drawn)


def shown_parameters(parameters: Mapping[str, Any]) -> str:
    """Return the parameters of a trial on one line."""
    values = {path: f"{value:.3g}" if isinstance(value, float) else value for path, value in parameters.items()}
    return " ".join(f"{path}={value}" for path, value in values.items())


def _import(place: str) -> ModuleType:
    """Import the module of a space, given its name or the path of its file."""
    try:
        if place.endswith(".py"):
            # The current directory of a submitted job is a copy of the user's; other relative paths start from the
            # project's home, see `absolute`.
            path = Path(place).resolve() if Path(place).is_file() else absolute(place)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise SettingsError(f"--space {place}: there is no file {path}")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        # Python searches the script's own directory, jobs/, but spaces are next to it or in the current directory.
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
