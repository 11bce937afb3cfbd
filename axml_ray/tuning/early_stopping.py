"""Which trials are stopped early: asynchronous successive halving (ASHA), level by level.

A level's score rises while it trains, but the score of the next level begins anew, and a tree with fewer clusters
scores higher on them. So scores are compared within a group only, after equally many training documents of that
level: at the last level, which scores labels, with all trials; above it with trials whose tree is the same. Each
group is an ASHA of its own.
"""

from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from axml_ray.tuning.records import Trial

RUNGS = 12
TIME, SCORE = "documents", "score"


class LevelwiseASHA(FIFOScheduler):
    """Stops a trial whose score is not among the best of its group at a rung.

    Args:
        grace: documents of a level before the first rung; the others follow at this times powers of `reduction`.
        reduction: of the trials that reach a rung, one in so many goes on.
    """

    def __init__(self, grace: int, reduction: float):
        super().__init__()
        self.grace, self.reduction = grace, reduction
        self._groups: dict[str, ASHAScheduler] = {}
        self._known: set[tuple[str, str]] = set()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune asks what becomes of a trial."""
        if "group" not in result:
            return str(self.CONTINUE)
        name = result["group"]
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ASHAScheduler(
                time_attr=TIME, metric=SCORE, mode="max", grace_period=self.grace, reduction_factor=self.reduction,
                max_t=self.grace * self.reduction**RUNGS, stop_last_trials=False,
            )  # fmt: skip
        if (name, trial.trial_id) not in self._known:
            self._known.add((name, trial.trial_id))
            group.on_trial_add(tune_controller, trial)
        return str(group.on_trial_result(tune_controller, trial, result))

    def remember(self, trial: Trial) -> None:
        """Compare later trials with one of an earlier start, too."""
        name = SimpleNamespace(trial_id=f"earlier-{trial.number}")
        for scoring in trial.curve:
            self.on_trial_result(None, name, vars(scoring))
