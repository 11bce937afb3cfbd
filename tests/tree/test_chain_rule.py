"""Equation 1. Run: pytest tests/tree/test_chain_rule.py"""

import math

import numpy as np
import pytest
import torch

from axml_ray.tree.chain_rule import chain_rule


@pytest.mark.parametrize("array", [torch.tensor, np.array], ids=["torch", "numpy"])
class TestChainRule:
    def test_is_the_product_along_the_path(self, array):
        path = [[0.5, 0.25], [0.5, 1.0], [0.75, 0.125]]  # of two nodes, from the top
        log: object = 0.0
        for conditional in path:
            log = chain_rule(array([math.log(p) for p in conditional]), log)
        assert np.exp(np.asarray(log)).tolist() == pytest.approx([0.5 * 0.5 * 0.75, 0.25 * 0.125], rel=1e-6)

    @pytest.mark.parametrize("weight", [0, 0.25, 0.5])
    def test_a_weight_is_the_power_of_the_parents_probability(self, array, weight):
        found = chain_rule(array([math.log(0.5)]), array([math.log(0.3)]), weight)
        assert np.exp(np.asarray(found)).tolist() == pytest.approx([0.5 * 0.3**weight], rel=1e-6)

    def test_a_parent_of_probability_zero(self, array):
        own, impossible = array([-1.0]), array([-math.inf])
        assert np.asarray(chain_rule(own, impossible)).tolist() == [-math.inf]
        assert np.asarray(chain_rule(own, impossible, 0)).tolist() == [-1.0]  # not NaN
