"""Conditions on the labels of a prediction (`axml_ray.inference.explain.conditions`)."""

from axml_ray.settings.base import Settings


class LabelConditions(Settings):
    """The labels that a prediction may have; labels that are both allowed and excluded are excluded."""

    allowed_labels: tuple[str, ...] = ()
    """Return the best of these labels only, and of those of `allowed_prefixes`."""
    allowed_prefixes: tuple[str, ...] = ()
    """Return labels only that begin with one of these, or are among `allowed_labels`."""
    excluded_labels: tuple[str, ...] = ()
    """Return none of these labels."""
    excluded_prefixes: tuple[str, ...] = ()
    """Return no label that begins with one of these."""
