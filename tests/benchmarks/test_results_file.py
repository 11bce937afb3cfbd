"""Run: pytest tests/benchmarks/test_results_file.py

Recorded results stay where nothing could be measured, and a part alone doesn't write over the whole.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [["training.py", "--only", "docstrings_level1"], ["training_accuracy.py", "--corpus", "docstrings"]],
    ids=["parts", "a script"],
)
def test_without_the_corpus_there_is_one_line_and_no_file(words: list[str], tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text("recorded")
    done = subprocess.run(
        [sys.executable, BENCHMARKS / words[0], *words[1:], "--json", results],
        env=os.environ | {"AXML_RAY_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "prepare" in line
    assert results.read_text() == "recorded"


def test_a_part_alone_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import inference
    import results_file
    import training

    written: list[Path] = []

    def measure_nothing(names: object, measure: object, table: object, path: Path, threads: int) -> dict[str, float]:
        written.append(path)
        return {}

    monkeypatch.setattr(results_file, "measure_parts", measure_nothing)
    for script, part in ((training, "precisions"), (inference, next(iter(inference.PARTS)))):
        script.main(["--threads", "1"])
        script.main(["--threads", "1", "--only", part])
        whole, alone = written[-2:]
        assert alone != whole
        assert alone.parent == whole.parent == results_file.RESULTS
        assert part in alone.name
