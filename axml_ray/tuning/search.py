"""Which settings are tried next: at random, or where Optuna's TPE expects the best of what is known.

The first trial is the user's own settings, if the space can draw them: what a sweep finds is held against them. What is
drawn at random for another follows from seed and number alone; TPE's also from the results known by then. A
sweep that goes on hands the earlier trials in again, in their order, and is where it was.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from axml_ray.settings import Experiment, SettingsError
from axml_ray.tuning.space import Space, settings_of

Method = Literal["random", "tpe"]
Direction = Literal["maximize", "minimize"]
STARTUP = 8
"""Trials that TPE draws at random before it looks at results."""
REDRAWS = 40
TRIED = 50
"""Draws that are checked before a sweep starts."""

log = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.WARNING)


class Search:
    """Draws trials and learns what came of them; trials are numbered from 0 as they are drawn or handed in.

    Args:
        space: to draw from.
        method: how.
        seed: not negative.
        directions: "maximize" or "minimize", for each value of a result.
        base: settings that the first trial has; None for one that is drawn as the others.
    """

    def __init__(
        self,
        space: Space,
        method: Method,
        seed: int,
        directions: Sequence[Direction] = ("maximize",),
        base: Experiment | None = None,
    ):
        self.space, self.method, self.seed = space, method, seed
        self._study = optuna.create_study(directions=list(directions))
        self._trials: list[optuna.Trial] = []
        self._drawn: list[dict[str, Any]] = []
        self._first = space.of_settings(base) if base else None
        if base and not self._first:
            log.info("tune: the space can't draw the config's own settings; the first trial is drawn as the others")

    def again(self, parameters: Mapping[str, Any]) -> None:
        """Hand in a trial of an earlier start.

        Raises:
            SettingsError: the space can't draw it.
        """
        self._study.enqueue_trial(dict(parameters))
        trial, drawn = self._ask(0)
        if drawn != parameters:
            raise SettingsError(f"the space no longer draws trial {len(self._trials)}: {dict(parameters)}")
        self._keep(trial, drawn)

    def draw(self) -> dict[str, Any] | None:
        """The parameters of the next trial, unlike those of all before; None if nothing new was found."""
        if self._first and not self._trials:
            self._study.enqueue_trial(self._first)
        for attempt in range(REDRAWS):
            trial, drawn = self._ask(attempt)
            if drawn not in self._drawn:
                self._keep(trial, drawn)
                return drawn
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def tell(self, number: int, values: Sequence[float]) -> None:
        """What trial `number` reached, a value for each direction."""
        self._study.tell(self._trials[number], list(values))

    def tell_stopped(self, number: int, documents: int, score: float | None) -> None:
        """Trial `number` was stopped after so many documents of its last level, or before there were any (None)."""
        if score is not None:
            self._trials[number].report(score, documents)
        self._study.tell(self._trials[number], state=TrialState.PRUNED)

    def tell_failed(self, number: int) -> None:
        """Nothing is known of trial `number`."""
        self._study.tell(self._trials[number], state=TrialState.FAIL)

    def _ask(self, attempt: int) -> tuple[optuna.Trial, dict[str, Any]]:
        # TPE may insist on what it knows to be good; then chance finds what is new.
        method = self.method if attempt < REDRAWS // 2 else "random"
        self._study.sampler = _sampler(method, self.seed, len(self._trials), attempt)
        trial = self._study.ask()
        return trial, self.space.draw(trial)

    def _keep(self, trial: optuna.Trial, drawn: dict[str, Any]) -> None:
        self._trials.append(trial)
        self._drawn.append(drawn)


def check_space(space: Space, base: Experiment, seed: int) -> None:
    """Draw some trials and validate their settings, before anything is started.

    Raises:
        SettingsError: the space raises an error, or draws settings that are wrong.
    """
    study = optuna.create_study()
    for attempt in range(TRIED):
        study.sampler = _sampler("random", seed, 0, attempt)
        trial = study.ask()
        try:
            drawn = space.draw(trial)
        except Exception as error:  # whatever a user's function raises
            raise SettingsError(f"--space {' '.join(space.names)}: {type(error).__name__}: {error}") from None
        if not drawn:
            raise SettingsError(f"--space {' '.join(space.names)}: nothing was drawn")
        settings_of(base, drawn)


def _sampler(method: Method, seed: int, number: int, attempt: int) -> BaseSampler:
    digest = hashlib.sha256(f"{seed} {number} {attempt}".encode()).digest()
    state = int.from_bytes(digest[:4], "little")
    return RandomSampler(state) if method == "random" else TPESampler(seed=state, n_startup_trials=STARTUP)
