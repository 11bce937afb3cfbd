"""The choice of the settings of the next trial: at random, or by Optuna's TPE from the results so far.

The first trial has the user's own settings, if the space can draw them, as a baseline. What is drawn at random depends
on the seed and the number of the trial only; what TPE draws depends on the results so far as well. A resumed sweep
replays its earlier trials in their order, which restores the state of the search.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from axml_ray.core.errors import SettingsError
from axml_ray.settings import Experiment
from axml_ray.tuning.space import Space, apply_parameters

Method = Literal["random", "tpe"]
Direction = Literal["maximize", "minimize"]
STARTUP = 8
"""Number of trials that TPE draws at random before it uses results."""
REDRAWS = 40
"""Number of attempts to draw parameters that no earlier trial has."""
TRIED = 50
"""Number of draws that are checked before a sweep starts."""

log = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.WARNING)


class Search:
    """Draws trials and learns from their results; trials are numbered from 0 in the order of drawing or replaying.

    Args:
        space: the search space.
        method: how settings are drawn.
        seed: random seed, not negative.
        directions: "maximize" or "minimize", for each value of a result.
        base: settings of the first trial; None draws it like the others.
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
            log.info("tune: the space cannot draw the config's own settings; the first trial is drawn like the others")

    def replay(self, parameters: Mapping[str, Any]) -> None:
        """Add a trial of an earlier start.

        Raises:
            SettingsError: the space cannot draw its parameters.
        """
        self._study.enqueue_trial(dict(parameters))
        trial, drawn = self._ask(0)
        if drawn != parameters:
            raise SettingsError(
                f"--space: it no longer draws trial {len(self._trials)}, {dict(parameters)}; restore the space, or "
                "choose another --sweep"
            )
        self._keep(trial, drawn)

    def draw(self) -> dict[str, Any] | None:
        """Return the parameters of the next trial, different from all before; None if no new ones were drawn."""
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
        """Report the result of trial `number`, a value for each direction."""
        self._study.tell(self._trials[number], list(values))

    def tell_stopped(self, number: int, documents: int, score: float | None) -> None:
        """Report that trial `number` was stopped early.

        Args:
            number: number of the trial.
            documents: training documents that its leaf level had seen.
            score: its score; None if it was stopped above the leaf level.
        """
        if score is not None:
            self._trials[number].report(score, documents)
        self._study.tell(self._trials[number], state=TrialState.PRUNED)

    def tell_failed(self, number: int) -> None:
        """Report that trial `number` failed and has no result."""
        self._study.tell(self._trials[number], state=TrialState.FAIL)

    def _ask(self, attempt: int) -> tuple[optuna.Trial, dict[str, Any]]:
        # TPE may draw the same good parameters again and again; after some attempts, new ones are drawn at random.
        method = self.method if attempt < REDRAWS // 2 else "random"
        self._study.sampler = _sampler(method, self.seed, len(self._trials), attempt)
        trial = self._study.ask()
        return trial, self.space.draw(trial)

    def _keep(self, trial: optuna.Trial, drawn: dict[str, Any]) -> None:
        self._trials.append(trial)
        self._drawn.append(drawn)


def check_space(space: Space, base: Experiment, seed: int) -> None:
    """Draw some trials and validate their settings before the sweep is started.

    Raises:
        SettingsError: the space raises an error, or draws invalid settings.
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
            raise SettingsError(f"--space {' '.join(space.names)}: it draws nothing; call draw.suggest_… at least once")
        apply_parameters(base, drawn)


def _sampler(method: Method, seed: int, number: int, attempt: int) -> BaseSampler:
    """Return a sampler whose random state depends on seed, trial and attempt only, so that replays are exact."""
    digest = hashlib.sha256(f"{seed} {number} {attempt}".encode()).digest()
    state = int.from_bytes(digest[:4], "little")
    return RandomSampler(state) if method == "random" else TPESampler(seed=state, n_startup_trials=STARTUP)
