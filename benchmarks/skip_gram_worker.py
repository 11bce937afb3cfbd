"""Trains skip-gram vectors with gensim, in the environment of its own that `word_vectors.py` makes for it.

    .peers/gensim/bin/python benchmarks/skip_gram_worker.py DIRECTORY

DIRECTORY holds `task.json`, `{"dimension", "epochs", "seed"}`, and `tokens.npz`, the word ids of the documents as
`values` and `offsets`. It gets `ids.npy`, the ids of the words that occur; `vectors.npy`, float32 [ids, dimension]; and
`done.json`, `{"seconds", "version"}`. Reading and writing are not timed.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np


def main(directory: Path) -> None:
    """Do the task that `directory` describes."""
    import gensim  # only in the environment of the worker

    task = json.loads((directory / "task.json").read_text())
    tokens = np.load(directory / "tokens.npz")
    offsets, values = tokens["offsets"], tokens["values"]
    documents = [values[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]
    start = time.perf_counter()
    model = gensim.models.Word2Vec(
        sg=1,
        negative=5,
        window=5,
        sample=1e-4,
        min_count=1,
        workers=1,
        vector_size=task["dimension"],
        seed=task["seed"],
    )
    model.build_vocab(documents)
    model.train(documents, total_examples=len(documents), epochs=task["epochs"])
    seconds = time.perf_counter() - start
    np.save(directory / "ids.npy", np.array(model.wv.index_to_key, dtype=np.int64))
    np.save(directory / "vectors.npy", model.wv.vectors)
    (directory / "done.json").write_text(json.dumps({"seconds": seconds, "version": gensim.__version__}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
