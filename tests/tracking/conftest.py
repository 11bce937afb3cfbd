import sys
from pathlib import Path

# the tiny corpus
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
