"""Seeds that are derived from the seed of a run."""

import numpy as np


def derived_seed(seed: int, number: int) -> int:
    """Return the seed of a numbered part, such as a label tree of a run or a level of a tree, 0 to 2^32 - 1.

    Seeds of other numbers, or from other seeds, are independent of it, unlike sums.

    Args:
        seed: not negative.
        number: not negative.
    """
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
