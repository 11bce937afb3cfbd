"""The command `axml-ray predict` as a script, for `ray job submit`; `--help` explains it.

ray job submit --working-dir . -- python jobs/predict.py --bundle bundles/mine --input new.jsonl --output out
"""

from axml_ray.cli.predict import main

if __name__ == "__main__":
    main()
