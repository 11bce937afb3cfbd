"""A self-contained HTML page of a sweep: curves of the best trials, score against cost, and a table of all trials."""

from collections.abc import Sequence

from markupsafe import Markup

from axml_ray.evaluation.reports.charts import STYLE, Axis, Line, line_chart
from axml_ray.tuning.records import Trial
from axml_ray.tuning.space import shown_parameters

CURVES = 6
"""Largest number of trials whose curves are drawn."""
PAGE_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color-scheme: light dark; max-width: 1080px; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; } figure.chart { max-width: 640px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n { text-align: right; }
"""


def page(name: str, documents: int, trials: Sequence[Trial], front: Sequence[Trial] = ()) -> str:
    """Return the text of the page of a sweep whose trials train on a number of documents.

    `front` has the trials on the Pareto front, by falling score, if cost was measured.
    """
    score = Axis(label="valid nDCG@5")
    order = {"finished": 0, "stopped": 1, "running": 2, "failed": 3}
    trials = sorted(trials, key=lambda trial: (order[trial.state], -(trial.score or 0), trial.number))
    # The leaf level of the first tree, by the documents that it has seen.
    curves = {
        trial.number: [(one.documents, one.score) for one in trial.curve if one.is_of_labels and one.tree == 0]
        for trial in trials
    }
    best = [Line(name=f"trial {number}", points=points) for number, points in curves.items() if points][:CURVES]
    charts = [line_chart("Score during the training of the leaf level", Axis(label="documents"), score, best)]
    if front:
        points = [(trial.milliseconds or 0.0, trial.score) for trial in reversed(front)]
        cost = Axis(label="CPU ms a text", minimum=0)
        charts.append(line_chart("Score against cost", cost, score, [Line(name="Pareto front", points=points)]))
    cell = Markup('<td class="n">{}</td>')
    rows = [
        Markup("<tr>{}<td>{}</td>{}<td>{}</td></tr>").format(
            cell.format(trial.number),
            " · ".join(filter(None, (trial.state, trial.reason))),
            Markup("").join(
                cell.format(text)
                for text in (
                    "–" if trial.score is None else f"{trial.score:.2f}",
                    "–" if trial.milliseconds is None else f"{trial.milliseconds:.2f}",
                    f"{trial.steps:,}",
                )
            ),
            shown_parameters(trial.parameters),
        )
        for trial in trials
    ]
    heads = ("trial", "", "valid nDCG@5", "ms a text", "steps", "drawn")
    return Markup(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><title>Sweep {name}</title>'
        "<style>{style}</style></head><body>\n<h1>Sweep {name}</h1>\n"
        "<p>{count} trials on {documents:,} training documents each.</p>\n{charts}\n<h2>Trials</h2>\n"
        '<div class="scroll"><table><tr>{heads}</tr>\n{rows}\n</table></div>\n</body></html>\n'
    ).format(
        name=name,
        style=Markup(STYLE + PAGE_STYLE),
        count=len(trials),
        documents=documents,
        charts=Markup("\n").join(charts),
        heads=Markup("").join(Markup("<th>{}</th>").format(head) for head in heads),
        rows=Markup("\n").join(rows),
    )
