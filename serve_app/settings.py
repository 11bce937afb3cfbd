"""Settings of a server: from flags of `axml-ray serve`, `serve run … key=value`, or a Serve YAML's `args`."""

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from axml_ray.core.errors import SettingsError
from axml_ray.settings import AbsolutePath, Positive, Settings
from axml_ray.settings.base import explain

BODY_LIMIT_S = 10.0
"""Seconds for a client to send its body; a request that takes longer is answered with 408."""
INFLIGHT_BATCHES = 2
"""Batches in flight to each replica of the members: one that it computes and one that waits."""
MAX_TEXTS = 64
"""Largest number of texts in a request."""
MAX_CHARACTERS = 100_000
"""Largest number of characters in a text."""
MAX_LABELS = 1_000
"""Largest number of labels whose scores a request may ask for, and of labels or prefixes in a condition."""
MAX_EXPLANATIONS = 320
"""Largest number of labels, over all texts of a request, that may be explained."""


def _checked_origin(given: str) -> str:
    """Return an origin as browsers send it: in lower case, and without the port that the scheme has anyway."""
    if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s*]+", origin := given.lower()):
        raise ValueError("expected scheme and host without a path, such as https://catalogue.example.org, or * alone")
    return re.sub(r"(?<=^https://)(.+):443$|(?<=^http://)(.+):80$", r"\1\2", origin)


Origin = Annotated[str, AfterValidator(_checked_origin)]
Origins = Annotated[
    tuple[Origin, ...],
    BeforeValidator(lambda given: given.replace(",", " ").split() if isinstance(given, str) else given),
]


class ServingSettings(Settings):
    """Settings that do not depend on the bundle."""

    colocate_members: bool = True
    """Put all members into one deployment; with false, the members of each label tree have a deployment of their own,
    and those of the whole run another, so that they can be on several machines."""
    replicas: Positive = 1
    """Replicas of the members (of each deployment with colocate_members=false); the least number if `max_replicas` is
    set."""
    max_replicas: Positive | None = None
    """Largest number of replicas of the members, which then follows the load; by default there is no autoscaling."""
    ingress_replicas: Positive = 1
    """Replicas of the ingress, which answers HTTP, tokenises, and combines the members' rankings."""
    cpus: Annotated[float, Field(gt=0)] | None = None
    """CPUs that Ray reserves for each replica of the members, and its number of PyTorch threads, at least one. By
    default half a CPU is reserved, and the threads are the number of cores, divided among the deployments with
    colocate_members=false. An ingress reserves 0.1."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that Ray reserves for each replica of members with networks; below 1, replicas share one. 0 computes on the
    CPU."""
    max_body_bytes: Positive = 4 << 20
    """Largest size of a request's body in bytes, decompressed if it is gzip."""
    time_limit_s: Annotated[float, Field(gt=0)] = 20.0
    """Seconds for an answer; a request that takes longer is answered with 504, and a replica of the members whose
    prediction takes longer, and longer than 10 s, is replaced."""
    max_queued_texts: Positive = 512
    """Largest number of texts in the queue for the members; with more, requests are refused (503)."""
    allowed_origins: Origins | None = None
    """Origins whose web pages may call the API in browsers (CORS), such as `https://catalogue.example.org`, separated
    by commas; `*` for all. Pages send API keys themselves; cookies are not used."""
    examples: AbsolutePath | None = None
    """File of JSON lines with a field `text`: example texts for the web page."""

    @model_validator(mode="after")
    def _replicas_are_a_range(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}, below replicas ({self.replicas}); raise it or lower replicas"
            )
        return self

    @model_validator(mode="after")
    def _gpus_are_whole(self) -> Self:
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus is {self.gpus:g}; above 1, take a whole number")
        return self

    @property
    def reserved_cpus(self) -> float:
        """CPUs that Ray reserves for each replica of the members."""
        return 0.5 if self.cpus is None else self.cpus

    @property
    def drain_s(self) -> float:
        """Seconds to drain requests in flight when a replica is stopped: for their body, their answer, and 5 more."""
        return BODY_LIMIT_S + self.time_limit_s + 5

    @property
    def without_bundle(self) -> "ServingSettings":
        """The settings that stay the same when another bundle is rolled out."""
        return ServingSettings(**self.model_dump(include=set(ServingSettings.model_fields)))


class ApplicationSettings(ServingSettings):
    """Settings of the application: which bundle it serves, and how."""

    bundle: AbsolutePath
    """Directory or URL that `axml-ray export` wrote; on a cluster, all nodes must see a directory under this path."""
    revision: Annotated[str, BeforeValidator(str)] = ""
    """Any text; change it to make `serve deploy` open a bundle again that was exported to the same directory."""

    @classmethod
    def from_arguments(cls, args: dict[str, Any]) -> Self:
        """Validate the arguments that `serve` was given.

        Raises:
            SettingsError: a setting is unknown or has a wrong value, or the bundle is missing.
        """
        try:
            return cls.model_validate(args)
        except ValidationError as error:
            # A mistyped key makes a required one missing, so unknown keys are reported first.
            problem = min(error.errors(), key=lambda error: error["type"] != "extra_forbidden")
            key = ".".join(map(str, problem["loc"]))
            if problem["type"] == "missing":
                raise SettingsError(
                    f"{key}: missing; give --{key} to axml-ray serve, {key}=… to serve run, or in `args`"
                ) from None
            if problem["type"] == "extra_forbidden":
                raise SettingsError(f"{key}: no such setting; {nearest(key, cls.model_fields)}") from None
            raise SettingsError(
                f"{f'{key}: ' if key else ''}{explain(problem)} (given: {problem['input']!r})"
            ) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return advice on an unknown name: the most similar known one, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
