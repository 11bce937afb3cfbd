"""The group of Ray Train workers that trains a member, and what it does for them: checkpoints, preemptions, restarts.

The group has a stable name, and its storage is in the member's directory until the member is fitted. A group that is
started again, by Ray after the death of a worker or by another job, finds its newest checkpoint there.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray.train
from ray.train import Checkpoint, CheckpointConfig, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from axml_ray.cluster.connection import PREEMPTION_WATCHER
from axml_ray.core import storage as object_store
from axml_ray.core.files import check_fences, copy_files, read_json
from axml_ray.core.paths import uri_of
from axml_ray.settings import ResourceSettings
from axml_ray.training.checkpoints import FORMAT, MANIFEST
from axml_ray.training.level_files import read_manifest

SNAPSHOT = "checkpoint_manager_snapshot.json"
"""Ray Train's list of the checkpoints in its storage."""
RAY_TRAIN_VARIABLES = {
    # The controller polls for checkpoints and dead workers; its default of 2 s is long in short trainings.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    # A group that does not fit any more after the loss of a node waits as long for it before it starts with fewer.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "15",
}
"""Environment variables of Ray Train, unless the user has set them."""
GRACE_SECONDS = 300.0
"""Time after the deadline of a preemption at which training goes on if the group was not started again."""


def train_in_group(train: Callable[[dict[str, Any]], Any], config: dict[str, Any], storage: Path,
                   resources: ResourceSettings, memory: int = 0) -> Any:  # fmt: skip
    """Run a function on a group of workers, again after the death of one; return what that of rank 0 returned.

    Args:
        train: called with `config` on each worker.
        config: its argument.
        storage: directory of the group's checkpoints, whose name is that of the group.
        resources: number and resources of the workers.
        memory: bytes that each worker reserves besides.
    """
    for name, value in RAY_TRAIN_VARIABLES.items():
        os.environ.setdefault(name, value)
    _check_snapshot(storage)
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        # Ray notices dead workers; the others wait for as long as the first one takes to write a large level.
        torch_config=TorchConfig(backend="nccl" if resources.gpus_per_worker else "gloo", timeout_s=24 * 3600),
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker={**resources.of_a_worker, "memory": memory},
        ),
        run_config=RunConfig(
            name=storage.name,
            storage_path=uri_of(storage.parent),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            # Restarts after the preemption of a node are not counted.
            failure_config=FailureConfig(max_failures=resources.max_failures),
        ),
    )
    return trainer.fit().return_value


def _check_snapshot(storage: Path) -> None:
    """Remove Ray Train's list of checkpoints if a kill left it incomplete, with which Ray Train would not start.

    Checkpoints that are complete are found without it.
    """
    try:
        object_store.fetch(storage / SNAPSHOT)
        listed = read_json(storage / SNAPSHOT)["checkpoint_results"]
        is_whole = all(object_store.sizes(storage / entry["checkpoint_dir_name"]) for entry in listed)
    except (OSError, ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        check_fences(storage)
        object_store.remove(storage / SNAPSHOT)


class RayTrainGroup:
    """The group of this process, a worker of Ray Train; see `axml_ray.training.checkpoints.WorkerGroup`.

    Args:
        storage: as in `train_in_group`.
    """

    def __init__(self, storage: Path) -> None:
        self.is_storing = False
        self._storage = storage
        self._heeded: Any = None
        if ray.train.get_context().get_world_rank() == 0:
            self._remove_incomplete()

    def _remove_incomplete(self) -> None:
        """Remove what killed workers left of checkpoints; others cannot write before this worker takes part."""
        check_fences(self._storage)
        newest = ray.train.get_checkpoint()
        for directory in object_store.children(self._storage):
            is_newest = newest is not None and directory.name == Path(newest.path).name
            is_checkpoint = directory.name.startswith("checkpoint_") and not is_newest
            if is_checkpoint and read_manifest(directory, MANIFEST, FORMAT) is None:
                object_store.remove(directory)

    def store(self, files: Path, metrics: dict[str, Any], done: Callable[[], None]) -> None:
        """Report a checkpoint, which Ray Train's thread copies to the storage; then call `done`."""

        def copy(checkpoint: Checkpoint, name: str) -> Checkpoint:
            to = self._storage / name
            try:
                object_store.fetch(self._storage, ())  # also removes here what Ray Train has removed from a URL
                copy_files(files, to)
            except OSError:
                check_fences(to)
                object_store.remove(to)  # the disk may be full
                raise
            finally:
                done()
                self.is_storing = False
            storage = ray.train.get_context().get_storage()
            return Checkpoint(storage.build_checkpoint_path_from_name(name), storage.storage_filesystem)

        self.is_storing = True
        ray.train.report(
            metrics,
            Checkpoint.from_directory(files),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=False,
            checkpoint_upload_fn=copy,
        )

    def is_preempted(self) -> bool:
        """Return whether a node of the group is about to be taken away; all workers call this together."""
        if os.environ.get(PREEMPTION_WATCHER) == "0":
            return False
        info = ray.train.get_preemption_info()
        is_new, self._heeded = info not in (None, self._heeded), info
        return is_new

    def wait_for_restart(self) -> None:
        """Wait for the end of this process: after the deadline, Ray Train starts the group on the other nodes."""
        deadline = (self._heeded.deadline_ms or 0) / 1000 if self._heeded else 0
        time.sleep(max(0.0, deadline - time.time()) + GRACE_SECONDS)
