"""The group of Ray Train workers starts again with whatever a kill left of Ray Train's list of checkpoints."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from axml_ray.orchestration.worker_group import SNAPSHOT, train_in_group
from axml_ray.settings import ResourceSettings


def test_a_group_starts_with_a_broken_list_of_checkpoints(ray_cluster: None, tmp_path: Path) -> None:
    storage = tmp_path / "group"

    def train(config: dict[str, Any]) -> None:
        import ray.train

        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "state").write_text("state")
            ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))

    def start() -> Path:
        """Return the checkpoint that the group has stored."""
        train_in_group(train, {}, storage, ResourceSettings(workers=1, cpus_per_worker=0.5, max_failures=0))
        [one] = json.loads((storage / SNAPSHOT).read_text())["checkpoint_results"]
        return storage / str(one["checkpoint_dir_name"])

    first = start()
    content = (storage / SNAPSHOT).read_bytes()
    (storage / SNAPSHOT).write_bytes(content[: len(content) // 2])
    second = start()
    shutil.rmtree(second)
    third = start()
    assert first.is_dir() and third.is_dir() and third != second
