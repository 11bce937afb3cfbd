"""The command `axml-ray plan` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/plan.py --config configs/amazon3m.yaml
"""

from axml_ray.cli.plan import main

if __name__ == "__main__":
    main()
