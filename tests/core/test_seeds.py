"""Run: pytest tests/core/test_seeds.py"""

import numpy as np

from axml_ray.core.seeds import derived_seed
from axml_ray.corpus.store import Corpus
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load


def test_trees_of_neighbouring_seeds_have_nothing_in_common(tmp_path):
    settings = load(corpus={"source": "installed_packages"})
    corpus = Corpus(tmp_path, {})
    runs = [Run(settings.model_copy(update={"seed": seed}), corpus) for seed in range(40)]
    assert len({run.tree_seed(number) for run in runs for number in range(8)}) == 40 * 8


def test_a_seed_is_the_same_for_ever_and_of_the_range_of_the_setting():
    assert [derived_seed(seed, number) for seed, number in ((0, 0), (0, 1), (1, 0))] == [
        2968811710,
        3964924996,
        1835504127,
    ]
    assert all(0 <= derived_seed(seed, 3) < 2**32 for seed in (0, 2**32 - 1))


def test_bits_of_derived_seeds_are_balanced():
    seeds = np.array([derived_seed(seed, number) for seed in range(30) for number in range(30)])
    shares = np.array([(seeds >> bit & 1).mean() for bit in range(32)])
    assert np.abs(shares - 0.5).max() < 0.1
