"""Opens a bundle, tags texts one after the other, prints what that cost as JSON, and waits for a line of input.

    python benchmarks/bundle_opener.py BUNDLE TEXTS COUNT

While it waits, another process can open the bundle: its files are in memory then.
"""

import json
import sys
import time
from itertools import islice
from pathlib import Path

from process_costs import private_bytes

from axml_ray import Tagger


def main() -> None:
    """Print `seconds` of opening, `private_mib` of memory after it, and `ms` of tagging a text."""
    bundle, path, count = sys.argv[1:]
    before, began = private_bytes("self"), time.perf_counter()
    tagger = Tagger.load(bundle)
    opened, private = time.perf_counter() - began, private_bytes("self") - before
    with Path(path).open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in islice(file, int(count))]
    tagger.tag(texts[:1])  # warm up
    began = time.perf_counter()
    for text in texts:
        tagger.tag([text])
    tagging = (time.perf_counter() - began) / len(texts)
    print(json.dumps({"seconds": opened, "private_mib": private / 2**20, "ms": 1000 * tagging}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
