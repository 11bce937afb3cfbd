"""The HTTP API, as a FastAPI application around a `Service`."""

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
from serve_app.problems import Problem, add_handlers, described, problem
from serve_app.service import Service
from serve_app.serving import Serving

PAGE = Path(__file__).parent / "page"
ABSENT: Any = None
"""What a field has that was left out; null itself is refused, as the schema says."""
READY_S = 5.0
"""Limit for the members' answer that they are ready."""


def _whole(value: Any) -> Any:
    """5.0 is a whole number of JSON; "5" is not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class TagRequest(BaseModel):
    """What `POST /v1/tag` takes. What is left out is None."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={"oneOf": [{"required": ["text"]}, {"required": ["texts"]}]},
    )

    text: str = Field(ABSENT)
    """A text; or give `texts`."""
    texts: list[str] = Field(ABSENT)
    """Several texts."""
    top_k: Annotated[int, Field(ge=1, le=1_000, strict=True), BeforeValidator(_whole)] = 5
    """Labels a text, at most; at most as many as the model's `top_labels` are found."""
    threshold: float = Field(ABSENT, ge=0, le=1, strict=True)
    """Leave out labels with a lower probability."""
    explain: Annotated[bool, Field(strict=True)] = False
    """Also return each member's contribution, the words that each label attended to, and its path down each tree; costs
    about a text a label."""
    labels: list[str] = Field(ABSENT)
    """Score these labels alone, and give all of them back whatever `top_k` is; 0 for a text without a word."""

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
    """The one after its last."""
    weight: float
    """Attention of the label to it, the mean over members with attention; all words' sum to one, or are zero."""


class Node(BaseModel):
    """A node of the path to a label."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    level: int
    name: str
    """Its most frequent labels."""
    probability: float
    """The level's network's probability of it."""
    weights: list[float]
    """Its attention to each word."""


class MemberContribution(BaseModel):
    """What a member of the ensemble contributes to a label's score."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    member: str
    """Its name."""
    score: float
    """Its own score of the label, 0 to 1; 0 where the label is not among its best."""
    share: float
    """Its weight among the members that answered."""
    points: float
    """Share times score; all members' sum to the weighted mean, which the combiner may calibrate."""


class MemberPath(BaseModel):
    """The path to a label down a member's tree."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    member: str
    """Its name."""
    path: list[Node]
    """From the top; the last node is the label itself."""


class Why(BaseModel):
    """Why a text has a label."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: str
    name: str
    words: list[WordWeight]
    contributions: list[MemberContribution]
    """Of each member that answered."""
    paths: list[MemberPath]
    """Of each member that attends to words."""


class LabelOfText(BaseModel):
    """A label of a text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: str
    """As the corpus writes it."""
    name: str
    """What a person reads."""
    score: float
    """Weighted mean of the members' scores, 0 to 1, calibrated where the bundle's combiner does so."""
    probability: float
    """Share of validation predictions of about this score that were right."""
    explanation: Why | None = None
    """If it was asked for."""


class TextResult(BaseModel):
    """The labels of one text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    words: int
    """Words that were read; longer texts are cut."""
    labels: list[LabelOfText]
    """Best first; none for a text without a word."""


class TagResponse(BaseModel):
    """What `POST /v1/tag` answers."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    edition: str
    """Of the bundle that answered."""
    members: int
    """Of the ensemble."""
    members_used: int
    """Members that answered; fewer while some are away."""
    milliseconds: float
    """That the server took."""
    results: list[TextResult]
    """Of each text, in their order."""


class FoundLabel(BaseModel):
    """A label by name."""

    label: str
    name: str
    documents: int


class ModelMember(BaseModel):
    """A member of the ensemble."""

    name: str
    kind: str
    weight: float


class Model(BaseModel):
    """What the server answers from."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    edition: str
    axml_ray: str
    labels: int
    words: int
    """Of the vocabulary."""
    trees: int
    level_sizes: list[list[int]]
    weights: str
    max_tokens: int
    """Words of a text that are read."""
    top_labels: int
    """Most labels of a text that can be had."""
    members: list[ModelMember]
    limits: dict[str, int]
    """Of a request."""


class Health(BaseModel):
    """That the server lives."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Which members answer."""

    ready: bool
    members: int
    members_used: int


def make_api(service: Service, keys: Sequence[str] = ()) -> FastAPI:
    """The application.

    Args:
        service: that tags, with its limits.
        keys: that clients may use; none lets everyone in.
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
    patch_fastapi(app, redirect_from_root_to_docs=False, title="axml-ray: API")  # its files come from the package
    _add_routes(app, service, [Depends(HTTPBearer(auto_error=False))] if keys else [])
    _add_page(app, service)
    return app


def _limited(serving: Serving) -> type[TagRequest]:
    """The request with the limits of the settings, for OpenAPI and in the messages."""
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
        responses=described(400, *refused, 408, 413, 415, 422, 500, 503, 504),
        dependencies=guarded,
        summary="Tag one text or many",
    )
    async def tag(given: Annotated[request_type, Body()]) -> Any:  # type: ignore[valid-type]
        started = time.perf_counter()
        asked: TagRequest = given
        texts = asked.texts if asked.text is None else [asked.text]
        with meter.request(len(texts)) as count:
            async with asyncio.timeout(serving.time_limit_s):
                tagged = await service.tag(texts, asked.top_k, asked.explain, asked.threshold, asked.labels)
            count(len(tagged.members_used))
        content = {
            "edition": tagged.front.edition.name,
            "members": len(tagged.front.bundle.combination.members),
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
        response_model=list[FoundLabel],
        responses=described(*refused, 422, 500),
        dependencies=guarded,
        summary="Search labels by name",
    )
    async def labels(
        query: Annotated[str, Query(max_length=200, description="Words of the name, in any order and case")] = "",
        limit: Annotated[int, Query(ge=1, le=100, description="Labels wanted; the most frequent come first")] = 20,
    ) -> Any:
        return JSONResponse(await asyncio.to_thread(service.front.search, query, limit))

    @app.get(
        "/v1/model",
        response_model=Model,
        responses=described(*refused, 500),
        dependencies=guarded,
        summary="What the server answers from",
    )
    async def model() -> Any:
        limits = {
            "texts": serving.max_texts,
            "characters": serving.max_characters,
            "labels": serving.max_labels,
            "explanations": serving.max_explanations,
            "body_bytes": serving.max_body_bytes,
        }
        return {**service.front.description, "limits": limits}

    @app.get(
        "/v1/examples",
        response_model=list[str],
        responses=described(*refused, 500),
        dependencies=guarded,
        summary="Texts to try",
    )
    async def examples() -> Any:
        return JSONResponse(service.examples)

    @app.get("/healthz", response_model=Health, responses=described(500), summary="Does the server live?")
    async def healthz() -> Any:
        return {"status": "ok"}

    @app.get("/readyz", response_model=Ready, responses=described(500, 503), summary="Do the members answer?")
    async def readyz() -> Any:
        if service.draining:
            return closing()
        try:
            async with asyncio.timeout(READY_S):
                used = await service.ready()
        except TimeoutError:
            return problem(503, "no member answers", headers={"Retry-After": "2"})
        return {"ready": True, "members": len(service.front.bundle.combination.members), "members_used": len(used)}

    # The problems are described by reference, so the schema has to be there.
    described_by_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = described_by_fastapi()
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
