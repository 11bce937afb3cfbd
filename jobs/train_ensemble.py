"""The main job: prepare a corpus where that isn't done, train an ensemble of label trees, judge it on test.

python jobs/train_ensemble.py --config configs/quickstart.yaml
ray job submit --working-dir . -- python jobs/train_ensemble.py --config configs/quickstart.yaml

Started again after a stop, it goes on: no finished level is trained twice.
"""

import shlex
from pathlib import Path

from axml_ray.console import job
from axml_ray.settings import Experiment

OWN_TEXTS = """  For texts of your own, write JSON lines {"text": …, "labels": […]}, name the files in a copy of
  configs/mine.yaml and start this job with it; --help explains every setting."""


@job(__doc__)
def main(settings: Experiment) -> None:
    """Run the main job and show its table."""
    from rich.console import Console

    from axml_ray.evaluation.report import table
    from axml_ray.pipeline import run
    from axml_ray.storage.layout import RunLayout

    metrics = run(settings)
    Console(width=None if Console().is_terminal else 110).print(table(metrics))
    print(f"Run: {settings.run_directory} (metrics.json, predictions/test, tree-*/level-*)")
    print(f"Its report, for a browser: {RunLayout(settings.run_directory).report()}")
    print(next_steps(settings))


def next_steps(settings: Experiment) -> str:
    """The commands that make use of a finished run, with its paths."""
    run = settings.run_directory
    bundle = run.parent.parent / "bundles" / run.name
    commands = (
        ("evaluate.py", "--run", run, "--open"),
        ("export_bundle.py", "--run", run, "--to", bundle),
        ("predict.py", "--bundle", bundle, "--input", "new.jsonl", "--output", "predictions"),
    )
    lines = [f"  python jobs/{shlex.join(map(str, _as_typed(command)))}" for command in commands]
    if settings.corpus.source == "installed_packages":
        lines.append(OWN_TEXTS)
    return "\n".join(["Next:", *lines])


def _as_typed(command: tuple[str | Path, ...]) -> list[str | Path]:
    """Paths below the current directory as they are typed there."""
    here = Path.cwd()
    return [
        word.relative_to(here) if isinstance(word, Path) and word.is_relative_to(here) else word for word in command
    ]


if __name__ == "__main__":
    main()
