"""Train and evaluate on the docstrings of the installed packages: no data is downloaded; minutes on 2 cores.

    axml-ray demo

This is `axml-ray train --config quickstart`. It writes into `corpora/` and `runs/` of the current directory, and
continues where it was after a stop. Further flags are settings, such as `--corpus.max_train_documents 2000`.
"""

from axml_ray.cli.console import job
from axml_ray.cli.train import train

main = job(__doc__, config="quickstart")(train)
