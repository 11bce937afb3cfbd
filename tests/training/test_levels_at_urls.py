"""Two workers whose disks the other does not see write the directories of a level together, at a URL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from s3 import Bucket

from axml_ray.core.paths import absolute
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level_files import read_manifest, write_together

PRIVATE = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
WORKER = Path(__file__).with_name("private_worker.py")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting takes root on Linux"),
]


def test_each_worker_publishes_its_rows_and_fetches_no_others(bucket: Bucket, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    own = ["unshare", "--mount", "--propagation", "private", "sh", "-c", PRIVATE, str(cache), sys.executable]
    command = [*own, str(WORKER)]
    url = f"s3://{bucket.name}/run"
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), url], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    answers = [json.loads(worker.communicate(timeout=120)[0].splitlines()[-1]) for worker in workers]
    for rank, answer in enumerate(answers):
        assert answer == {
            "numbers": [0, 1],
            "rows": 3 * [10.0 + rank],
            "fetched": ["checkpoint.json", "model.safetensors", f"rows-{rank}.safetensors"],
            "left": ["level-1", "level-1.checkpoint"],
            "table": [0.0, 1.0, 0.0, 1.0],  # row i of worker r is row i·W + r
        }
    assert not list(cache.iterdir())  # theirs were elsewhere
    files = json.loads(bucket.read("run/level-1.checkpoint/.axml-ray.json"))["files"]
    assert sorted(files) == ["checkpoint.json", "model.safetensors", "rows-0.safetensors", "rows-1.safetensors"]
    assert len(bucket.names()) == len(files) + 1 + 4  # and those of the level with its manifest


def test_a_level_that_lacks_an_object_is_not_used(bucket: Bucket, tmp_path: Path) -> None:
    level = absolute(f"s3://{bucket.name}/run/level-1")
    with write_together(level, DistributedContext(), "level.json", {"format": "level", "fingerprint": "key"}) as work:
        (work / "rows-0.safetensors").write_bytes(b"rows")
    assert read_manifest(level, "level.json", "level", "key") is not None
    [rows] = [name for name in bucket.names() if "rows-0" in name]
    bucket.delete(rows)
    assert read_manifest(level, "level.json", "level", "key") is None
