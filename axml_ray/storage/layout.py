"""The run layout: every file and directory of a run, by name.

<run>/
  settings.yaml          exactly what ran
  corpus.json            key of the corpus that the run was begun with
  tree-0/                label tree 0: tree.safetensors, tree.json, training.jsonl, tensorboard/
    <kind>/              members of which each tree has one
  members/<kind>/        members of which the run has one; features.safetensors, which members share
  combiner/              what the combiner learned
  predictions/<split>/   *.parquet
  metrics.json, metrics-<split>.json, report/
"""

from dataclasses import dataclass
from pathlib import Path

TEST = "test"


@dataclass(frozen=True)
class RunLayout:
    """The paths of a run.

    Attributes:
        directory: of the run.
    """

    directory: Path

    @property
    def settings(self) -> Path:
        """Settings of the run, YAML."""
        return self.directory / "settings.yaml"

    @property
    def corpus(self) -> Path:
        """Fingerprint of the corpus that the run was begun with, JSON."""
        return self.directory / "corpus.json"

    def tree(self, number: int) -> Path:
        """Directory of a label tree (from 0), with its journal and members."""
        return self.directory / f"tree-{number}"

    def tree_file(self, number: int) -> Path:
        """Shape of a label tree, safetensors."""
        return self.tree(number) / "tree.safetensors"

    def tree_manifest(self, number: int) -> Path:
        """Cache key and level sizes of a label tree, JSON; written after the shape."""
        return self.tree(number) / "tree.json"

    def member(self, kind: str, tree: int | None) -> Path:
        """Directory of a member: of one label tree, or of the run."""
        return self.directory / "members" / kind if tree is None else self.tree(tree) / kind

    @property
    def features(self) -> Path:
        """The featurizer that members share, safetensors."""
        return self.directory / "members" / "features.safetensors"

    @property
    def combiner(self) -> Path:
        """Directory of what the combiner learned."""
        return self.directory / "combiner"

    @property
    def all_predictions(self) -> Path:
        """Directory of the predictions of all splits."""
        return self.directory / "predictions"

    def predictions(self, split: str) -> Path:
        """Directory of the predictions of a split, Parquet."""
        return self.all_predictions / split

    @property
    def workers(self) -> Path:
        """Ray Train's own records."""
        return self.directory / "ray-train"

    def metrics(self, split: str = TEST) -> Path:
        """Scores of a split, JSON."""
        return self.directory / ("metrics.json" if split == TEST else f"metrics-{split}.json")

    def report(self, split: str = TEST) -> Path:
        """The report on a split, HTML."""
        return self.directory / "report" / ("index.html" if split == TEST else f"{split}.html")
