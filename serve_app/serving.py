"""What a server may be told: typed, validated settings, from `serve run … key=value` or a Serve YAML's `args`."""

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from axml_ray.settings import AbsolutePath, Positive, Precision, Settings, SettingsError

Seconds = Annotated[float, Field(gt=0)]


class Serving(Settings):
    """How a bundle is served, whichever it is."""

    together: bool = True
    """Hold all members in one replica; false gives the members of each label tree a deployment of their own, and those
    of the whole run another, which other machines can hold."""
    replicas: Positive = 1
    """Replicas of the members (of each deployment with together=false); the fewest where `max_replicas` is given."""
    max_replicas: Positive | None = None
    """Most replicas of the members, whose number then follows the load; by default there is no autoscaling."""
    ingress_replicas: Positive = 1
    """Replicas of the ingress, which answers HTTP, tokenises, and combines the members' rankings."""
    threads: Positive | None = None
    """Threads of PyTorch in each replica of the members; by default the cores, divided among the deployments with
    together=false."""
    cpus: Annotated[float, Field(ge=0)] = 0.5
    """CPUs that Ray reserves for each replica of the members; it reserves 0.1 for an ingress."""
    precision: Precision | None = None
    """Precision of matrix products: auto, bfloat16 or float32; by default as the run was trained."""
    max_texts: Positive = 64
    """Most texts of a request."""
    max_characters: Positive = 100_000
    """Most characters of a text."""
    max_labels: Positive = 1_000
    """Most labels whose scores a request may ask for."""
    max_explanations: Positive = 320
    """Most labels, of all its texts, that a request may have explained."""
    max_body_bytes: Positive = 4 << 20
    """Most bytes of a request's body."""
    time_limit_s: Seconds = 20.0
    """Seconds for an answer; a request that takes longer is answered with 504."""
    body_limit_s: Seconds = 10.0
    """Seconds for a client to send its body; a request that takes longer is answered with 408."""
    tree_patience_s: Seconds = 1.0
    """Seconds that a deployment's answer is waited for, at least, once the others have answered."""
    waiting_texts: Positive = 512
    """Texts that may wait for the members; with more, requests are refused (503) until some are answered."""
    batch_words: Positive = 1 << 13
    """Most words of a batch; a larger request is a batch of its own."""
    batches_at_once: Positive = 2
    """Batches under way to each replica of the members: one that it computes and one that waits."""
    examples: AbsolutePath | None = None
    """File of JSON lines with a field `text`, which the page offers to try."""

    @model_validator(mode="after")
    def _replicas_are_a_range(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas is {self.max_replicas}, below replicas ({self.replicas})")
        return self

    @property
    def most_batches(self) -> int:
        """Batches on their way, from one ingress, at most."""
        return self.batches_at_once * (self.max_replicas or self.replicas)

    @property
    def drain_s(self) -> float:
        """Seconds for requests under way when a replica is stopped: their body, their answer, and the way back."""
        return self.body_limit_s + self.time_limit_s + 5

    @property
    def alone(self) -> "Serving":
        """The same without the bundle: what stays as it is when another is rolled out."""
        return Serving(**given(self, Serving))


class Served(Serving):
    """Settings of the application."""

    bundle: AbsolutePath
    """Directory that `jobs/export_bundle.py` wrote; on a cluster, all nodes must see it under this path."""
    revision: Annotated[str, BeforeValidator(str)] = ""
    """Any text; `serve deploy` opens the same bundle again only if a setting has changed, such as this one."""

    @classmethod
    def of(cls, args: dict[str, Any]) -> Self:
        """The settings that `serve` was given.

        Raises:
            SettingsError: one is unknown or wrong, or the bundle is missing.
        """
        try:
            return cls.model_validate(args)
        except ValidationError as error:
            # An unknown key explains why another is missing, so it comes first.
            problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
            key = ".".join(map(str, problem["loc"]))
            if problem["type"] == "missing":
                raise SettingsError(f"{key}: missing; give {key}=… on the command line, or in `args`") from None
            if problem["type"] == "extra_forbidden":
                raise SettingsError(f"{key}: no such setting; {nearest(key, cls.model_fields)}") from None
            said = problem["msg"].removeprefix("Value error, ")
            raise SettingsError(f"{f'{key}: ' if key else ''}{said} (given: {problem['input']!r})") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """How to fix a name that isn't among the known ones."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def given(settings: Settings, kind: type[Settings]) -> dict[str, Any]:
    """What of some settings those of a kind that they extend have, too."""
    return {name: getattr(settings, name) for name in kind.model_fields}
