"""Requests and responses of the HTTP API."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from axml_ray.settings import LabelConditions
from serve_app.settings import MAX_CHARACTERS, MAX_LABELS, MAX_TEXTS

Text = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]
Labels = Annotated[list[str], Field(min_length=1, max_length=MAX_LABELS)]
ABSENT: Any = None
"""Value of a field that is missing from a request. Its type excludes None, so that null is refused as in the schema."""


def _whole(value: Any) -> Any:
    """Convert a float without a fraction: 5.0 is an integer of JSON Schema, "5" is not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Schema(BaseModel):
    """A model whose fields are described by their docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class TagRequest(Schema):
    """A request to `POST /v1/tag`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"oneOf": [{"required": ["text"]}, {"required": ["texts"]}]},
    )

    text: Text = Field(ABSENT)
    """One text; give either this or `texts`."""
    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)] = Field(ABSENT)
    """Several texts."""
    top_k: Annotated[int, Field(ge=1, le=1_000, strict=True), BeforeValidator(_whole)] = 5
    """Largest number of labels of a text; the model's `top_labels` is another limit."""
    threshold: float = Field(ABSENT, ge=0, le=1, strict=True)
    """Omit labels with a lower probability."""
    explain: Annotated[bool, Field(strict=True)] = False
    """Also return each member's contribution, the words that each label attends to, and its path down each tree; takes
    about the time of another text."""
    labels: Labels = Field(ABSENT)
    """Score these labels only, and return all of them regardless of `top_k`; their scores are 0 for a text without a
    word."""
    allowed_labels: Labels = Field(ABSENT)
    """Return the best of these labels only, or of those of `allowed_prefixes`."""
    allowed_prefixes: Labels = Field(ABSENT)
    """Return only labels that begin with one of these, or are among `allowed_labels`."""
    excluded_labels: Labels = Field(ABSENT)
    """Return none of these labels."""
    excluded_prefixes: Labels = Field(ABSENT)
    """Return no label that begins with one of these."""

    @property
    def conditions(self) -> LabelConditions | None:
        """The conditions on labels, if there are any."""
        fields = {name: getattr(self, name) for name in LabelConditions.model_fields}
        conditions = {name: tuple(values) for name, values in fields.items() if values is not None}
        return LabelConditions(**conditions) if conditions else None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        if self.labels is not None and self.conditions is not None:
            raise ValueError("give either labels, or labels and prefixes that are allowed or excluded")
        return self


class WordWeight(Schema):
    """A word of the text."""

    word: str
    start: int
    """First character (code point) of the word."""
    end: int
    """Index after its last character."""
    weight: float
    """Attention of the label to the word, the mean over members with attention; the weights of all words sum to one, or
    are all zero."""


class Node(Schema):
    """A node of the path to a label."""

    level: int
    name: str
    """Names of its most frequent labels."""
    probability: float
    """Probability that the level's network gives the node."""
    weights: list[float]
    """Attention of the node to each word."""


class MemberContribution(Schema):
    """The contribution of an ensemble member to a label's score."""

    member: str
    """Its name."""
    score: float
    """The member's score of the label, 0 to 1; 0 if the label is not among its best."""
    share: float
    """The member's weight divided by that of all members that answered."""
    points: float
    """Share times score; over all members they sum to the weighted mean, which the combiner may calibrate."""


class MemberPath(Schema):
    """The path to a label down a member's tree."""

    member: str
    """Its name."""
    path: list[Node]
    """From the top; the last node is the label itself."""


class LabelExplanation(Schema):
    """The explanation of a label of a text."""

    label: str
    name: str
    words: list[WordWeight]
    contributions: list[MemberContribution]
    """Contributions of the members that answered."""
    paths: list[MemberPath]
    """Tree paths of the members with attention."""


class LabelOfText(Schema):
    """A label of a text."""

    label: str
    """The label as in the corpus."""
    name: str
    """Its name for display."""
    score: float
    """Weighted mean of the members' scores, 0 to 1, calibrated where the bundle's combiner does so."""
    probability: float
    """Share of correct labels among validation predictions of about this score."""
    explanation: LabelExplanation | None = None
    """The explanation, if it was requested."""


class TextResult(Schema):
    """The labels of one text."""

    words: int
    """Number of words that were read; longer texts are cut."""
    labels: list[LabelOfText]
    """Labels, best first; none for a text without a word."""


class TagResponse(Schema):
    """A response of `POST /v1/tag`."""

    edition: str
    """Identifier of the bundle that answered."""
    members: int
    """Number of members of the ensemble."""
    members_used: int
    """Number of members that answered; fewer while some are unavailable."""
    milliseconds: float
    """Duration on the server in milliseconds."""
    results: list[TextResult]
    """Result of each text, in the order of the request."""


class LabelMatch(Schema):
    """A label whose name matches a search."""

    label: str
    name: str
    documents: int


class ModelMember(Schema):
    """A member of the ensemble."""

    name: str
    kind: str
    weight: float
    """Share of the ensemble's scores, as the combiner has fitted it; the weights add up to one."""


class Model(Schema):
    """The model that the server uses."""

    name: str
    edition: str
    axml_ray: str
    labels: int
    words: int
    """Number of words of the vocabulary."""
    trees: int
    level_sizes: list[list[int]]
    weights: str
    max_tokens: int
    """Number of words of a text that are read."""
    top_labels: int
    """Largest number of labels of a text that are ranked."""
    members: list[ModelMember]
    limits: dict[str, int]
    """Limits of a request by name."""


class Health(Schema):
    """The result of the liveness check."""

    status: Literal["ok"]


class Ready(Schema):
    """The result of the readiness check."""

    ready: bool
    members: int
    members_used: int
