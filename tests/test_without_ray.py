"""The core works in a process in which Ray cannot be imported: fit a run, export it, and tag with the bundle."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
from pathlib import Path

class NoRay:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoRay())
import axml_ray.workflow.evaluate, axml_ray.planning.diagnosis
from axml_ray import Tagger
from axml_ray.inference.bundle.export import export_bundle
from tiny_run import texts_of, train_run

home = Path(sys.argv[1])
run = train_run(home, trees=1, epochs=1)
export_bundle(run, home / "bundle")
[tags] = Tagger.load(home / "bundle").tag(texts_of(run, "test")[:1], top_k=3)
print(len(tags), "ray" in sys.modules)
"""


@pytest.mark.processes
def test_a_level_is_trained_and_a_text_tagged_without_ray(tmp_path: Path) -> None:
    path = os.pathsep.join(str(ROOT / part) for part in (".", "tests", "tests/training", "tests/inference"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["3", "False"], done.stderr
