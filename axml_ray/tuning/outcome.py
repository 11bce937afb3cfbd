"""The outcome of a sweep: a table, a JSON file and an HTML page of all trials, and configs of the best ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich import box
from rich.table import Table
from rich.text import Text

from axml_ray.core.errors import JobError
from axml_ray.core.files import whole_file, write_json
from axml_ray.corpus.store import Corpus
from axml_ray.settings import Experiment, stored
from axml_ray.tuning.page import page
from axml_ray.tuning.records import Trial
from axml_ray.tuning.space import apply_parameters, shown_parameters
from axml_ray.tuning.sweep import Sweep

OUTCOME, PAGE, BEST, FRONT = "trials.json", "sweep.html", "best.yaml", "front-{:03d}.yaml"
REASON = 60
"""Largest number of characters of a failure's reason in the table."""


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the finished trial with the best score; of equal ones, the first.

    Raises:
        JobError: no trial has finished.
    """
    finished = [trial for trial in trials if trial.state == "finished" and trial.score is not None]
    if not finished:
        reasons = "; ".join(sorted({trial.reason for trial in trials if trial.reason})) or "there were none"
        raise JobError(f"no trial of the sweep has finished ({reasons}); change the space or the settings")
    return max(finished, key=lambda trial: (trial.score, -trial.number))


def front(trials: Sequence[Trial]) -> list[Trial]:
    """Return the Pareto front: the trials that no other beats in both score and cost, by falling score."""
    result: list[Trial] = []
    finished = [trial for trial in trials if trial.state == "finished" and trial.milliseconds is not None]
    for trial in sorted(finished, key=lambda trial: (-(trial.score or 0), trial.milliseconds, trial.number)):
        if not result or (trial.milliseconds or 0) < (result[-1].milliseconds or 0):
            result.append(trial)
    return result


def trial_settings(sweep: Sweep, trial: Trial, name: str) -> Experiment:
    """Return the settings of a trial, for training on all documents."""
    settings = apply_parameters(sweep.settings, trial.parameters)
    training = settings.training.model_copy(update={"documents": None})
    return settings.model_copy(update={"name": name, "training": training})


def as_yaml(settings: Experiment) -> str:
    """Return settings as the text of a config: those that differ from the defaults, with paths as `stored` has them."""
    values = stored(settings, exclude_defaults=True)
    for name in ("runs", "corpora"):
        if values.get(name) == name:
            del values[name]
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def write_outcome(sweep: Sweep, corpus: Corpus, trials: Sequence[Trial]) -> Trial:
    """Write the outcome into the sweep's directory and return the best trial.

    Raises:
        JobError: no trial has finished; the trials are written, but no configs.
    """
    pareto = front(trials) if sweep.has_cost else []
    content: dict[str, Any] = {
        "sweep": sweep.name,
        "space": list(sweep.space.names),
        "objective": sweep.objective,
        "search": sweep.search,
        "early_stopping": sweep.stops_early,
        "corpus": sweep.settings.corpus.name,
        "documents": sweep.documents(corpus),
        "steps": sum(trial.steps for trial in trials),
        "front": [trial.number for trial in pareto],
        "trials": [trial.as_json() for trial in trials],
    }
    write_json(sweep.directory / OUTCOME, content)
    _write(sweep.directory / PAGE, page(sweep.name, content["documents"], trials, pareto))
    for stale in (sweep.directory / BEST, *sweep.directory.glob(FRONT.replace("{:03d}", "*"))):
        stale.unlink(missing_ok=True)
    best = best_trial(trials)
    _write(sweep.directory / BEST, _config(sweep, best, f"{sweep.name}-best", content["documents"]))
    for trial in pareto:
        name = f"{sweep.name}-{trial.number:03d}"
        _write(sweep.directory / FRONT.format(trial.number), _config(sweep, trial, name, content["documents"]))
    return best


def table(trials: Sequence[Trial], marked: Sequence[Trial] = ()) -> Table:
    """Return the trials for a rich console, the best first; those in `marked`, such as the front, are bold."""
    cost = any(trial.milliseconds is not None for trial in trials)
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("trial", "", "valid nDCG@5", *(["ms a text"] if cost else []), "steps"):
        shown.add_column(name, justify="left" if name == "" else "right", no_wrap=True)
    shown.add_column("drawn")
    bold = {trial.number for trial in marked}
    order = {"finished": 0, "stopped": 1, "running": 2, "failed": 3}
    for trial in sorted(trials, key=lambda trial: (order[trial.state], -(trial.score or 0), trial.number)):
        drawn = shown_parameters(trial.parameters)
        if trial.state == "failed" and trial.reason:
            drawn += f"\n{trial.reason if len(trial.reason) <= REASON else trial.reason[: REASON - 1] + '…'}"
        cells = [str(trial.number), trial.state, "–" if trial.score is None else f"{trial.score:.2f}"]
        if cost:
            cells.append("–" if trial.milliseconds is None else f"{trial.milliseconds:.2f}")
        shown.add_row(*cells, f"{trial.steps:,}", Text(drawn), style="bold" if trial.number in bold else "")
    return shown


def _config(sweep: Sweep, trial: Trial, name: str, documents: int) -> str:
    """Return a trial's settings as a config with a comment on its score."""
    cost = "" if trial.milliseconds is None else f", {trial.milliseconds:.2f} CPU ms a text"
    return (
        f"# Trial {trial.number} of the sweep {sweep.name}: nDCG@5 {trial.score:.2f} on validation after training on "
        f"{documents:,} documents{cost}.\n"
        "# To train on all documents: axml-ray train --config with this file.\n"
        + as_yaml(trial_settings(sweep, trial, name))
    )


def _write(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
