"""The main job: prepare a corpus where that isn't done, train an ensemble of label trees, judge it on test.

python jobs/train_ensemble.py --config configs/quickstart.yaml
ray job submit --working-dir . -- python jobs/train_ensemble.py --config configs/quickstart.yaml

Started again after a stop, it goes on: no finished level is trained twice.
"""

from rich.console import Console

from axml_ray.console import job
from axml_ray.evaluation.report import table
from axml_ray.pipeline import run
from axml_ray.settings import Experiment
from axml_ray.storage.layout import RunLayout

NEXT = """Next: train on texts of your own. Write them as JSON lines {"text": …, "labels": […]}, name the files in a
copy of configs/mine.yaml and start this job with it; --help explains every setting."""


@job(__doc__)
def main(settings: Experiment) -> None:
    """Run the main job and show its table."""
    metrics = run(settings)
    Console(width=None if Console().is_terminal else 110).print(table(metrics))
    print(f"The run lies in {settings.run_directory}: metrics.json, predictions/test, tree-*/level-*")
    print(f"Its report, for a browser: {RunLayout(settings.run_directory).report()}")
    print(NEXT)


if __name__ == "__main__":
    main()
