"""Conditions on predicted labels: only some labels, or all but some, named one by one or by their first characters.

A short list of allowed labels is scored as it is, so that the best of them are found wherever they are in the trees. In
all other cases the labels that are not allowed are removed from each member's ranking before the combiner.
"""

from dataclasses import dataclass

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.inference.explain.codec import Codec
from axml_ray.settings import LabelConditions

SCORED_LABELS = 1_000
"""Largest number of allowed labels that are scored one by one."""


@dataclass(frozen=True)
class AllowedLabels:
    """The labels of a bundle that meet conditions.

    Attributes:
        mask: whether each label is allowed, bool [L].
        scored: ids of the allowed labels, int64 [n], if they are so few that members score them one by one; else None,
            and members' rankings are filtered.
    """

    mask: np.ndarray
    scored: np.ndarray | None

    @classmethod
    def of(cls, conditions: LabelConditions, codec: Codec) -> "AllowedLabels":
        """Look up the labels that meet conditions.

        Raises:
            SettingsError: a label is unknown, no label begins with a prefix, or no label is left.
        """
        is_restricted = bool(conditions.allowed_labels or conditions.allowed_prefixes)
        mask = np.full(len(codec.index), not is_restricted)
        mask[codec.ids(conditions.allowed_labels, "allowed_labels")] = True
        mask[codec.ids_of_prefixes(conditions.allowed_prefixes, "allowed_prefixes")] = True
        mask[codec.ids(conditions.excluded_labels, "excluded_labels")] = False
        mask[codec.ids_of_prefixes(conditions.excluded_prefixes, "excluded_prefixes")] = False
        ids = np.flatnonzero(mask)
        if not len(ids):
            raise SettingsError("excluded_labels: every label is excluded; exclude fewer labels or prefixes")
        return cls(mask, ids if is_restricted and len(ids) <= SCORED_LABELS else None)
