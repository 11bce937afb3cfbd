"""The command `axml-ray export` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/export_bundle.py --run runs/quickstart --to bundles/quickstart
"""

from axml_ray.cli.export import main

if __name__ == "__main__":
    main()
