"""The command `axml-ray train` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/train_ensemble.py --config configs/quickstart.yaml
"""

from axml_ray.cli.train import main

if __name__ == "__main__":
    main()
