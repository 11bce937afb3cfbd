"""The outcome of a sweep: a table, a JSON file and an HTML page of all trials, and the config of the best one."""

from collections.abc import Sequence
from functools import reduce
from operator import getitem

import yaml
from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from axml_ray.core import storage
from axml_ray.core.errors import JobError
from axml_ray.core.files import whole_file, write_json
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.reports.charts import Axis, Line, line_chart
from axml_ray.evaluation.reports.html_file import write_html
from axml_ray.evaluation.reports.report import empty_table
from axml_ray.settings import Experiment, stored
from axml_ray.settings.configuration import by_path
from axml_ray.settings.presets import is_given
from axml_ray.tuning.records import Trial, by_rank
from axml_ray.tuning.space import apply_parameters, shown_parameters
from axml_ray.tuning.sweep import Sweep

OUTCOME, PAGE, BEST = "trials.json", "sweep.html", "best.yaml"
CURVES = 6
"""Largest number of trials whose curves are drawn."""
REASON = 60
"""Largest number of characters of a failure's reason in the table."""


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the finished trial with the best score; of equal ones, the first.

    Raises:
        JobError: no trial has finished.
    """
    finished = [trial for trial in by_rank(trials) if trial.state == "finished" and trial.score is not None]
    if not finished:
        reasons = "; ".join(sorted({trial.reason for trial in trials if trial.reason})) or "there were none"
        raise JobError(f"no trial of the sweep has finished ({reasons}); change the space or the settings")
    return finished[0]


def trial_settings(sweep: Sweep, trial: Trial, name: str) -> Experiment:
    """Return the settings of a trial, for training on all documents."""
    settings = apply_parameters(sweep.settings, trial.parameters)
    training = settings.training.model_copy(update={"documents": None})
    return settings.model_copy(update={"name": name, "training": training})


def write_outcome(sweep: Sweep, corpus: Corpus, trials: Sequence[Trial]) -> Trial:
    """Write the outcome into the sweep's directory and return the best trial.

    Raises:
        JobError: no trial has finished; the trials are written, but no config.
    """
    documents, config = sweep.documents(corpus), sweep.directory / BEST
    content = {
        "sweep": sweep.name,
        "space": list(sweep.space.names),
        "search": sweep.search,
        "early_stopping": sweep.early_stopping,
        "corpus": sweep.settings.corpus.name,
        "documents": documents,
        "steps": sum(trial.steps for trial in trials),
        "trials": [trial.as_json() for trial in trials],
    }
    write_json(sweep.directory / OUTCOME, content)
    write_html(
        sweep.directory / PAGE,
        "sweep.html.jinja",
        name=sweep.name,
        documents=documents,
        chart=curves_chart(trials),
        trials=[(trial, shown_parameters(trial.parameters)) for trial in by_rank(trials)],
    )
    storage.remove(config)  # of an earlier outcome
    best = best_trial(trials)
    # With all values, as the preset would fill in those that are missing; but `auto` chooses members by held-out texts.
    values = stored(trial_settings(sweep, best, f"{sweep.name}-best"))
    if sweep.settings.preset == "auto":
        for key, _ in list(by_path({group: values[group] for group in ("members", "features", "resources")})):
            if not is_given(key, sweep.settings.given):
                *groups, name = key.split(".")
                del reduce(getitem, groups, values)[name]
    with whole_file(config) as temporary:
        temporary.write_text(
            f"# Trial {best.number} of the sweep {sweep.name}: nDCG@5 {best.score:.2f} on validation after training on "
            f"{documents:,} documents.\n# To train on all documents: axml-ray train --config with this file.\n"
            + str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True)),
            encoding="utf-8",
        )
    return best


def curves_chart(trials: Sequence[Trial]) -> Markup:
    """Draw the scores of the best trials at the leaf level of the first tree, by the documents that it has seen."""
    curves = {
        trial.number: [
            (point.documents, point.score) for point in trial.curve if point.is_of_labels and point.tree == 0
        ]
        for trial in by_rank(trials)
    }
    lines = [Line(name=f"trial {number}", points=points) for number, points in curves.items() if points][:CURVES]
    title = "Score during the training of the leaf level"
    return line_chart(title, Axis(label="documents"), Axis(label="valid nDCG@5"), lines)


def table(trials: Sequence[Trial], best: Trial) -> Table:
    """Return the trials for a rich console, the best first and bold."""
    shown = empty_table("", ("trial", "state", "valid nDCG@5", "steps"))
    shown.add_column("drawn")
    for trial in by_rank(trials):
        drawn = shown_parameters(trial.parameters)
        if trial.state == "failed" and trial.reason:
            drawn += f"\n{trial.reason if len(trial.reason) <= REASON else trial.reason[: REASON - 1] + '…'}"
        score = "–" if trial.score is None else f"{trial.score:.2f}"
        style = "bold" if trial.number == best.number else ""
        shown.add_row(str(trial.number), trial.state, score, f"{trial.steps:,}", Text(drawn), style=style)
    return shown
