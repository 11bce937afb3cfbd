"""What a server may be told: typed, validated settings, from `serve run … key=value` or a Serve YAML's `args`."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from axml_ray.settings import AbsolutePath, Positive, Precision, Settings, SettingsError

Seconds = Annotated[float, Field(gt=0)]


class Serving(Settings):
    """How a bundle is served, whichever it is."""

    together: bool = True
    """All members in one replica; False gives the members of each label tree a deployment of their own, and those of
    the whole run another, which other machines can hold."""
    replicas: Positive = 1
    """Of the members (of each deployment, when apart); the least while `max_replicas` lets their number grow with
    the load."""
    max_replicas: Positive | None = None
    """Most replicas; by default there is no autoscaling."""
    ingress_replicas: Positive = 1
    """Of the ingress, which answers HTTP, tokenises, and combines the members' rankings."""
    threads: Positive | None = None
    """Of PyTorch in each replica of the members; by default the cores, divided among the deployments when apart."""
    cpus: Annotated[float, Field(ge=0)] = 0.5
    """CPUs that Ray reserves for each replica of the members; 0.1 are for an ingress."""
    precision: Precision | None = None
    """Of matrix products; by default as the run was trained."""
    max_texts: Positive = 64
    """Texts of a request."""
    max_characters: Positive = 100_000
    """Characters of a text."""
    max_labels: Positive = 1_000
    """Labels that a request may ask the scores of."""
    max_explanations: Positive = 320
    """Labels of all its texts that a request may have explained."""
    max_body_bytes: Positive = 4 << 20
    """Bytes of a request's body."""
    time_limit_s: Seconds = 20.0
    """For an answer; then 504."""
    body_limit_s: Seconds = 10.0
    """For a client to send its body; then 408."""
    tree_patience_s: Seconds = 1.0
    """How long the answer of a tree is waited for, at the least, once the others have theirs."""
    waiting_texts: Positive = 512
    """Texts that may wait for the members; with more, requests are refused (503) until some are answered."""
    batch_words: Positive = 1 << 13
    """Words of a batch; a larger request is a batch of its own."""
    batches_at_once: Positive = 2
    """Batches that are on their way to the members, for each of their replicas: one in work and one that waits."""
    examples: AbsolutePath | None = None
    """JSON lines with a field `text`, which the page offers to try."""

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
    """Directory that `jobs/export_bundle.py` wrote; all nodes must see it under this path."""
    revision: Annotated[str, BeforeValidator(str)] = ""
    """Anything: `serve deploy` opens the bundle anew only where a setting has changed, such as this one."""

    @classmethod
    def of(cls, args: dict[str, Any]) -> Self:
        """The settings that `serve` was given.

        Raises:
            SettingsError: one is unknown or wrong, or the bundle is missing.
        """
        try:
            return cls.model_validate(args)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"]))
            if problem["type"] == "missing":
                raise SettingsError(f"{key}: missing; give {key}=… after serve_app.app:build, or in `args`") from None
            if problem["type"] == "extra_forbidden":
                raise SettingsError(f"{key}: no such setting; there are {', '.join(cls.model_fields)}") from None
            said = problem["msg"].removeprefix("Value error, ")
            raise SettingsError(f"{f'{key}: ' if key else ''}{said} (given: {problem['input']!r})") from None


def given(settings: Settings, kind: type[Settings]) -> dict[str, Any]:
    """What of some settings those of a kind that they extend have, too."""
    return {name: getattr(settings, name) for name in kind.model_fields}
