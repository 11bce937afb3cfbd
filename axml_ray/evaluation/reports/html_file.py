"""HTML pages from templates: one file each, without external resources, so that it opens from disk."""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from axml_ray.core.files import whole_file
from axml_ray.evaluation.metrics.bands import band_name
from axml_ray.evaluation.metrics.predictions import title_of
from axml_ray.evaluation.reports.charts import STYLE


def write_html(path: Path, template: str, package: str = __package__, **values: Any) -> None:
    """Render a template and write it atomically.

    Args:
        path: file to write; its directories are created.
        template: file name of the template, which escapes all values.
        package: package of the template; by default this one.
        values: what the template shows, in addition to `style` (of charts) and `today`.
    """
    today = datetime.now().strftime("%Y-%m-%d")
    html = _environment(package).get_template(template).render(style=Markup(STYLE), today=today, **values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


@cache
def _environment(package: str) -> Environment:
    """Return the environment of a package's templates, which keeps those that it has compiled."""
    environment = Environment(
        loader=PackageLoader(package, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "score": lambda number: "–" if number is None else f"{number:.2f}",
        "interval": lambda limits: "" if limits is None else f"{limits[0]:.1f} – {limits[1]:.1f}",
        "thousands": lambda number: f"{number:,}",
        "p_value": lambda p: "< 0.001" if p < 0.001 else f"{p:.3f}",
        "title_of": title_of,
        "band_name": band_name,
    }
    environment.filters |= filters
    return environment
