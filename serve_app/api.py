"""The HTTP API: a FastAPI application around a `Service`."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from fastapi import Body, Depends, FastAPI, Query, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPBearer
from fastapi_swagger import patch_fastapi
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, create_model, model_validator

from axml_ray import __version__
from axml_ray.inference.codec import Tag
from serve_app.guard import Guard, closing
from serve_app.meter import Meter
from serve_app.problems import Problem, add_handlers, problem, problem_responses
from serve_app.service import Service
from serve_app.settings import ServingSettings

PAGE = Path(__file__).parent / "page"
ABSENT: Any = None
"""Value of a field that is missing from a request. Its type excludes None, so that null is refused as in the schema."""
READY_S = 5.0
"""Time limit of the readiness check in seconds."""


def _whole(value: Any) -> Any:
    """Convert a float without a fraction: 5.0 is an integer of JSON Schema, "5" is not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class TagRequest(BaseModel):
    """A request to `POST /v1/tag`."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={"oneOf": [{"required": ["text"]}, {"required": ["texts"]}]},
    )

    text: str = Field(ABSENT)
    """One text; give either this or `texts`."""
    texts: list[str] = Field(ABSENT)
    """Several texts."""
    top_k: Annotated[int, Field(ge=1, le=1_000, strict=True), BeforeValidator(_whole)] = 5
    """Largest number of labels of a text; the model's `top_labels` is another limit."""
    threshold: float = Field(ABSENT, ge=0, le=1, strict=True)
    """Omit labels with a lower probability."""
    explain: Annotated[bool, Field(strict=True)] = False
    """Also return each member's contribution, the words that each label attends to, and its path down each tree; takes
    about the time of another text per label."""
    labels: list[str] = Field(ABSENT)
    """Score these labels only, and return all of them regardless of `top_k`; their scores are 0 for a text without a
    word."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        return self


class WordWeight(BaseModel):
    """A word of the text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    word: str
    start: int
    """First character (code point) of the word."""
    end: int
    """Index after its last character."""
    weight: float
    """Attention of the label to the word, the mean over members with attention; the weights of all words sum to one, or
    are all zero."""


class Node(BaseModel):
    """A node of the path to a label."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    level: int
    name: str
    """Names of its most frequent labels."""
    probability: float
    """Probability that the level's network gives the node."""
    weights: list[float]
    """Attention of the node to each word."""


class MemberContribution(BaseModel):
    """The contribution of an ensemble member to a label's score."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    member: str
    """Its name."""
    score: float
    """The member's score of the label, 0 to 1; 0 if the label is not among its best."""
    share: float
    """The member's weight divided by that of all members that answered."""
    points: float
    """Share times score; over all members they sum to the weighted mean, which the combiner may calibrate."""


class MemberPath(BaseModel):
    """The path to a label down a member's tree."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    member: str
    """Its name."""
    path: list[Node]
    """From the top; the last node is the label itself."""


class LabelExplanation(BaseModel):
    """The explanation of a label of a text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: str
    name: str
    words: list[WordWeight]
    contributions: list[MemberContribution]
    """Contributions of the members that answered."""
    paths: list[MemberPath]
    """Tree paths of the members with attention."""


class LabelOfText(BaseModel):
    """A label of a text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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


class TextResult(BaseModel):
    """The labels of one text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    words: int
    """Number of words that were read; longer texts are cut."""
    labels: list[LabelOfText]
    """Labels, best first; none for a text without a word."""


class TagResponse(BaseModel):
    """A response of `POST /v1/tag`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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


class LabelMatch(BaseModel):
    """A label whose name matches a search."""

    label: str
    name: str
    documents: int


class ModelMember(BaseModel):
    """A member of the ensemble."""

    name: str
    kind: str
    weight: float


class Model(BaseModel):
    """The model that the server uses."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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


class Health(BaseModel):
    """The result of the liveness check."""

    status: Literal["ok"]


class Ready(BaseModel):
    """The result of the readiness check."""

    ready: bool
    members: int
    members_used: int


def make_api(service: Service, keys: Sequence[str] = ()) -> FastAPI:
    """Return the FastAPI application.

    Args:
        service: the service that tags texts, with its limits.
        keys: accepted API keys; if there are none, no key is required.
    """
    app = FastAPI(
        title="axml-ray",
        version=__version__,
        description="The right few of very many labels for a text.",
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    add_handlers(app, TagRequest.model_fields)
    app.add_middleware(Guard, service=service, keys=keys)
    # Serves the files of Swagger's page from the package instead of from a content delivery network.
    patch_fastapi(app, redirect_from_root_to_docs=False, title="axml-ray: API")
    _add_routes(app, service, [Depends(HTTPBearer(auto_error=False))] if keys else [])
    _add_page(app, service)
    return app


def _limited(serving: ServingSettings) -> type[TagRequest]:
    """Return the class of requests with the limits of the settings, so that OpenAPI and error messages name them."""
    text = Annotated[str, StringConstraints(max_length=serving.max_characters)]
    limited: dict[str, Any] = {
        "text": text,
        "texts": Annotated[list[text], Field(min_length=1, max_length=serving.max_texts)],
        "labels": Annotated[list[str], Field(min_length=1, max_length=serving.max_labels)],
    }
    known = TagRequest.model_fields
    fields: dict[str, Any] = {
        name: (kind, Field(ABSENT, description=known[name].description)) for name, kind in limited.items()
    }
    return create_model("TagRequest", __base__=TagRequest, **fields)


def _add_routes(app: FastAPI, service: Service, guarded: list[Any]) -> None:
    serving, meter = service.serving, Meter(service)
    request_type = _limited(serving)
    refused = (401,) if guarded else ()

    @app.post(
        "/v1/tag",
        response_model=TagResponse,
        responses=problem_responses(400, *refused, 408, 413, 415, 422, 500, 503, 504),
        dependencies=guarded,
        summary="Tag one text or many",
    )
    async def tag(body: Annotated[request_type, Body()]) -> Any:  # type: ignore[valid-type]
        started = time.perf_counter()
        request: TagRequest = body
        texts = request.texts if request.text is None else [request.text]
        with meter.request(len(texts)) as count:
            async with asyncio.timeout(serving.time_limit_s):
                tagged = await service.tag(texts, request.top_k, request.explain, request.threshold, request.labels)
            count(len(tagged.members_used))
        content = {
            "edition": tagged.served.edition.name,
            "members": len(tagged.served.bundle.combination.members),
            "members_used": len(tagged.members_used),
            "milliseconds": round(1_000 * (time.perf_counter() - started), 2),
            "results": [
                {"words": words, "labels": [_as_json(tag) for tag in tags]}
                for words, tags in zip(tagged.words.tolist(), tagged.tags, strict=True)
            ],
        }
        return JSONResponse(content)

    @app.get(
        "/v1/labels",
        response_model=list[LabelMatch],
        responses=problem_responses(*refused, 422, 500),
        dependencies=guarded,
        summary="Search labels by name",
    )
    async def labels(
        query: Annotated[str, Query(max_length=200, description="Words of the name, in any order and case")] = "",
        limit: Annotated[
            int, Query(ge=1, le=100, description="Largest number of labels; the most frequent come first")
        ] = 20,
    ) -> Any:
        return JSONResponse(await asyncio.to_thread(service.served.search, query, limit))

    @app.get(
        "/v1/model",
        response_model=Model,
        responses=problem_responses(*refused, 500),
        dependencies=guarded,
        summary="Describe the model",
    )
    async def model() -> Any:
        limits = {
            "texts": serving.max_texts,
            "characters": serving.max_characters,
            "labels": serving.max_labels,
            "explanations": serving.max_explanations,
            "body_bytes": serving.max_body_bytes,
        }
        return {**service.served.description, "limits": limits}

    @app.get(
        "/v1/examples",
        response_model=list[str],
        responses=problem_responses(*refused, 500),
        dependencies=guarded,
        summary="Example texts",
    )
    async def examples() -> Any:
        return JSONResponse(service.examples)

    @app.get("/healthz", response_model=Health, responses=problem_responses(500), summary="Liveness check")
    async def healthz() -> Any:
        return {"status": "ok"}

    @app.get(
        "/readyz",
        response_model=Ready,
        responses=problem_responses(500, 503),
        summary="Readiness check: do the members answer?",
    )
    async def readyz() -> Any:
        if service.draining:
            return closing()
        try:
            async with asyncio.timeout(READY_S):
                used = await service.ready()
        except TimeoutError:
            return problem(503, "no member answers; try again soon", headers={"Retry-After": "2"})
        return {"ready": True, "members": len(service.served.bundle.combination.members), "members_used": len(used)}

    # `problem_responses` refers to the schema of Problem, which FastAPI does not add, as no route returns it.
    original_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = original_openapi()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(schema.pop("$defs", {}))
        schemas["Problem"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_page(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    for name in ("app.js", "finder.js", "parts.js", "server.js", "style.css", "icon.svg"):
        app.add_api_route(
            f"/page/{name}", lambda name=name: FileResponse(PAGE / name), include_in_schema=False, methods=["GET"]
        )


def _as_json(tag: Tag) -> dict[str, Any]:
    content = {"label": tag.label, "name": tag.name, "score": tag.score, "probability": tag.probability}
    return content if tag.explanation is None else {**content, "explanation": tag.explanation.as_json()}
