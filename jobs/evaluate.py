"""The command `axml-ray evaluate` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/evaluate.py --run runs/quickstart
"""

from axml_ray.cli.evaluate import main

if __name__ == "__main__":
    main()
