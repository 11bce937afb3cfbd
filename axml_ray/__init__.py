"""AttentionXML as a distributed Ray application."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from axml_ray.inference.tagger import Tag, Tagger

__version__ = "0.1.0"
__all__ = ["Tag", "Tagger", "__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import, and most modules of this package don't need a tagger.
    if name in ("Tag", "Tagger"):
        from axml_ray.inference import tagger

        return getattr(tagger, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
