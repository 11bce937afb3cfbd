"""AttentionXML as a distributed Ray application."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from axml_ray.estimator import AttentionXMLClassifier
    from axml_ray.inference.tagger import Tag, Tagger
    from axml_ray.settings import LabelConditions

__version__ = "0.1.0"
__all__ = ["AttentionXMLClassifier", "LabelConditions", "Tag", "Tagger", "__version__"]

_MODULES = {
    "AttentionXMLClassifier": "axml_ray.estimator",
    "LabelConditions": "axml_ray.settings",
    "Tag": "axml_ray.inference.tagger",
    "Tagger": "axml_ray.inference.tagger",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # PyTorch and Ray take seconds to import, and most modules of this package need neither.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
