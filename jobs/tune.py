"""The command `axml-ray tune` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/tune.py --config configs/quickstart.yaml --space tune_spaces.tree
"""

from axml_ray.cli.tune import main

if __name__ == "__main__":
    main()
