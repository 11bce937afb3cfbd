import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "training")]  # the tiny corpus
