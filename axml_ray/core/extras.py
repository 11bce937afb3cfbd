"""Optional dependencies, the extras of the package: `pip install "axml-ray[serve,tune]"`."""

from collections.abc import Iterable
from importlib.util import find_spec

from axml_ray.core.errors import SettingsError

EXTRAS = {
    "serve": ("fastapi", "fastapi_swagger", "uvicorn"),
    "tune": ("optuna",),
    "tracking": ("mlflow", "wandb", "tensorboard"),
    "hub": ("huggingface_hub",),
}
"""Modules that each extra installs; the first that is missing shows that the extra is not installed."""


def missing_module(modules: Iterable[str]) -> str | None:
    """Return the first of some modules that is not installed; None if all are."""
    return next((module for module in modules if find_spec(module) is None), None)


def require_extra(extra: str, module: str | None = None) -> None:
    """Check that an extra is installed, before anything slow is started.

    Args:
        extra: name of the extra.
        module: the one of its modules that is needed; by default all.

    Raises:
        SettingsError: it is not; the message has the command that installs it.
    """
    modules = EXTRAS[extra] if module is None else (module,)
    if module := missing_module(modules):
        raise SettingsError(f'{module}: not installed; run: pip install "axml-ray[{extra}]"')
