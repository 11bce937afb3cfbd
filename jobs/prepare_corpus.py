"""The command `axml-ray prepare` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/prepare_corpus.py --config configs/eurlex57k.yaml
"""

from axml_ray.cli.prepare import main

if __name__ == "__main__":
    main()
