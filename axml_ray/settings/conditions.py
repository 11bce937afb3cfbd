"""Conditions on the labels of a prediction (`axml_ray.inference.explain.conditions`)."""

from typing import Annotated

from pydantic import Field

from axml_ray.settings.base import Settings

Strings = Annotated[tuple[str, ...], Field(min_length=1)]
"""An empty list is an error: nobody knows whether it allows no label, or all of them."""


class LabelConditions(Settings):
    """The labels that a prediction may have; labels that are both allowed and excluded are excluded."""

    allowed_labels: Strings = ()
    """Return the best of these labels only, and of those of `allowed_prefixes`."""
    allowed_prefixes: Strings = ()
    """Return labels only that begin with one of these, or are among `allowed_labels`."""
    excluded_labels: Strings = ()
    """Return none of these labels."""
    excluded_prefixes: Strings = ()
    """Return no label that begins with one of these."""
