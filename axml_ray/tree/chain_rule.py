"""The chain rule of probability along a path of the tree (paper, equation 1), in logarithms.

Logarithms, since a product of many small probabilities would underflow float32.
"""

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)
"""A PyTorch tensor or a numpy array."""


def chain_rule(log_conditional: Array, log_parent: Array | float, parent_score_exponent: float = 1.0) -> Array:
    """Return log P(z_n=1 | x) = log P(z_n=1 | z_Pa(n)=1, x) + log P(z_Pa(n)=1 | x) for some nodes n.

    Applied level by level from the top, it gives the product over the path from the root in equation 1.

    Args:
        log_conditional: what the model of the node's level says, [..., n].
        log_parent: the result for the parent of each node, of a shape that broadcasts to it; 0 for the root.
        parent_score_exponent: 1 is the paper's equation. Departing from it, a smaller exponent lets mistakes of
            upper levels count less: the parent's probability enters to that power, and at 0 not at all.
    """
    if parent_score_exponent == 0:  # not 0 · log_parent, which is NaN for a parent of probability 0
        return log_conditional
    return log_conditional + parent_score_exponent * log_parent
