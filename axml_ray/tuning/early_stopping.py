"""Early stopping of trials by asynchronous successive halving (ASHA), level by level.

Scores of different levels cannot be compared, nor those of clusters of different trees: a tree with fewer clusters has
higher scores on them. Scores are therefore compared within a group only, after the same number of training documents of
the level: at the leaf level with all trials, and above it with trials that have the same tree. Each group has its own
ASHA scheduler.
"""

from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

RUNGS = 12
"""Number of rungs after the first; more than a training ever reaches."""
TIME, SCORE = "documents", "score"


class LevelwiseASHA(FIFOScheduler):
    """A scheduler that stops a trial whose score is not among the best of its group at a rung.

    Args:
        grace: number of documents of a level before the first rung; further rungs are at `grace` times powers of
            `reduction`.
        reduction: 1 / `reduction` of the trials that reach a rung continue.
    """

    def __init__(self, grace: int, reduction: float):
        super().__init__()
        self.grace, self.reduction = grace, reduction
        self._groups: dict[str, ASHAScheduler] = {}
        self._known: set[tuple[str, str]] = set()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide whether a trial continues after a result; Tune calls this."""
        if "group" not in result:
            return str(self.CONTINUE)
        name = result["group"]
        if name not in self._groups:
            self._groups[name] = ASHAScheduler(
                time_attr=TIME, metric=SCORE, mode="max", grace_period=self.grace, reduction_factor=self.reduction,
                max_t=self.grace * self.reduction**RUNGS, stop_last_trials=False,
            )  # fmt: skip
        if (name, trial.trial_id) not in self._known:
            self._known.add((name, trial.trial_id))
            self._groups[name].on_trial_add(tune_controller, trial)
        return str(self._groups[name].on_trial_result(tune_controller, trial, result))
