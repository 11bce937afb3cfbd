"""The command `axml-ray inspect` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/inspect_tree.py --config configs/quickstart.yaml
"""

from axml_ray.cli.inspect import main

if __name__ == "__main__":
    main()
