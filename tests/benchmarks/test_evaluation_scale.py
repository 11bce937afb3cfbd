"""The benchmark of a large evaluation, on a small one."""

import json
from pathlib import Path

import evaluation_scale
import pytest


@pytest.mark.processes
def test_a_generated_run_is_evaluated(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    evaluation_scale.main(["--documents", "1100", "--labels", "2000", "--top", "10", "--json", str(path)])
    content = json.loads(path.read_text())
    assert content["figures"]["documents"] == 1100 and 0.1 < content["figures"]["peak_gib"] < 2
    assert 50 < content["rows"][0]["P@1"] <= 100
