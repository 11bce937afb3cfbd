"""Optional dependencies, the extras of the package: `pip install "axml-ray[serve,tune]"`."""

from importlib.util import find_spec

from axml_ray.settings import SettingsError

EXTRAS = {
    "serve": ("fastapi", "fastapi_swagger", "uvicorn"),
    "tune": ("optuna",),
    "tracking": ("tensorboard",),
    "hub": ("huggingface_hub",),
}
"""Modules that each extra installs; the first that is missing shows that the extra is not installed."""


def missing_module(extra: str) -> str | None:
    """Return a module of an extra that is not installed; None if all are."""
    return next((module for module in EXTRAS[extra] if find_spec(module) is None), None)


def require_extra(extra: str) -> None:
    """Check that an extra is installed, before anything slow is started.

    Raises:
        SettingsError: it is not; the message has the command that installs it.
    """
    if module := missing_module(extra):
        raise SettingsError(f'{module}: not installed; run: pip install "axml-ray[{extra}]"')
