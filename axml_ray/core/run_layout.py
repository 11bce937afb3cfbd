"""The run layout: every file and directory of a run, by name.

<run>/
  settings.yaml          exactly what ran
  selection.json         what `auto` chose by held-out training documents
  run.json               what identifies its corpus and the run that it continues (`run_manifest.py`)
  computed-in-cpu.json   the number format that `training.precision: auto` chose for all its trees; -cuda on GPUs
  tracking.json          ids of the run in trackers; tensorboard/, wandb/, their files
  tree-0/                label tree 0: tree.safetensors, tree.json, training.jsonl, tensorboard/
    <kind>/              the tree's member of this kind
  members/<kind>/        the run's member of this kind; features.safetensors, the featurizer that members share
  combiner/              the fitted combiner; calibration.json, from scores to probabilities
  predictions/<split>/   part-*.parquet, one a shard, kept under the key in _job.json; _predictions.json when complete
  metrics.json, metrics-<split>.json, report/; seconds.json, those of each phase
  errors/                a record of each failure: traceback, and the end of the workers' logs
  .lease/                while a job works on the run: its lease (`lease.py`)
"""

from dataclasses import dataclass
from pathlib import Path

TEST = "test"


@dataclass(frozen=True)
class RunLayout:
    """The paths of a run.

    Attributes:
        directory: directory of the run.
    """

    directory: Path

    @property
    def settings(self) -> Path:
        """Return the file of the run's settings, YAML."""
        return self.directory / "settings.yaml"

    @property
    def selection(self) -> Path:
        """Return the file of the members' settings that `auto` chose by held-out training documents, JSON."""
        return self.directory / "selection.json"

    @property
    def manifest(self) -> Path:
        """Return the file of what identifies the run's corpus and the run that it continues, JSON."""
        return self.directory / "run.json"

    def number_format(self, device_type: str) -> Path:
        """Return the file of the number format of the run's networks on devices of a type such as cpu, JSON."""
        return self.directory / f"computed-in-{device_type}.json"

    @property
    def tracking(self) -> Path:
        """Return the file of the run's ids by tracker, JSON."""
        return self.directory / "tracking.json"

    def tree(self, number: int) -> Path:
        """Return the directory of a label tree (from 0), with its journal and members."""
        return self.directory / f"tree-{number}"

    def tree_file(self, number: int) -> Path:
        """Return the file of a label tree, safetensors."""
        return self.tree(number) / "tree.safetensors"

    def tree_manifest(self, number: int) -> Path:
        """Return the file of a label tree's cache key and level sizes, JSON; it is written after the tree."""
        return self.tree(number) / "tree.json"

    def member(self, kind: str, tree: int | None) -> Path:
        """Return the directory of a member of one label tree, or of the run if `tree` is None."""
        return self.directory / "members" / kind if tree is None else self.tree(tree) / kind

    @property
    def features(self) -> Path:
        """Return the file of the featurizer that members share, safetensors."""
        return self.directory / "members" / "features.safetensors"

    @property
    def combiner(self) -> Path:
        """Return the directory of the fitted combiner."""
        return self.directory / "combiner"

    @property
    def calibration(self) -> Path:
        """Return the file of the calibration of scores to probabilities, with the key of the ensemble, JSON."""
        return self.directory / "calibration.json"

    @property
    def seconds(self) -> Path:
        """Return the file of the seconds of each phase, those of all starts together, JSON."""
        return self.directory / "seconds.json"

    def predictions(self, split: str) -> Path:
        """Return the directory of the predictions of a split, Parquet."""
        return self.directory / "predictions" / split

    def metrics(self, split: str = TEST) -> Path:
        """Return the file of the scores of a split, JSON."""
        return self.directory / ("metrics.json" if split == TEST else f"metrics-{split}.json")

    def report(self, split: str = TEST) -> Path:
        """Return the file of the report on a split, HTML."""
        return self.directory / "report" / ("index.html" if split == TEST else f"{split}.html")

    def charts(self, split: str = TEST) -> Path:
        """Return the file of the report without example documents, which trackers get, HTML."""
        return self.directory / "report" / ("charts.html" if split == TEST else f"{split}-charts.html")
