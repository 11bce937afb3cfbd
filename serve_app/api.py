"""The HTTP API: a FastAPI application around a `Service`."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Query
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from ray.serve import metrics
from starlette.staticfiles import StaticFiles

from axml_ray import __version__
from axml_ray.inference.explain.codec import Tag
from serve_app.guard import Guard, closing
from serve_app.problems import Problem, add_handlers, problem, problem_responses
from serve_app.schema import Health, LabelMatch, Model, Ready, TagRequest, TagResponse
from serve_app.service import Service
from serve_app.settings import MAX_CHARACTERS, MAX_EXPLANATIONS, MAX_LABELS, MAX_TEXTS

PAGE = Path(__file__).parent / "page"
SECONDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
"""Upper bounds of the buckets of the histogram of durations, in seconds."""
READY_S = 5.0
"""Time limit of the readiness check in seconds."""


def make_api(service: Service, keys: Sequence[str] = ()) -> FastAPI:
    """Return the FastAPI application; without any accepted API key in `keys`, no key is required."""
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
    if service.serving.allowed_origins:
        # Outside of the guard: a browser sends no key with its preflight, and shows no answer without these headers.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.serving.allowed_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["Authorization", "Content-Encoding"],
            expose_headers=["Retry-After", "WWW-Authenticate"],
        )
    guarded: list[Any] = [Depends(HTTPBearer(auto_error=False))] if keys else []
    _add_tag(app, service, guarded)
    _add_model(app, service, guarded)
    _add_health(app, service)
    _describe_problems(app)
    app.get("/", include_in_schema=False, response_class=FileResponse)(lambda: FileResponse(PAGE / "index.html"))
    app.mount("/page", StaticFiles(directory=PAGE))
    app.get("/docs", include_in_schema=False)(_describe_api)
    app.mount("/swagger", StaticFiles(packages=[("fastapi_swagger", "resources")]))
    return app


def _describe_api() -> HTMLResponse:
    """Return Swagger's page. Its links are relative, so that it works at any address of a proxy."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="axml-ray: API",
        swagger_js_url="swagger/swagger-ui-bundle.js",
        swagger_css_url="swagger/swagger-ui.css",
        swagger_favicon_url="swagger/favicon-32x32.png",
        swagger_ui_parameters={"tryItOutEnabled": True, "persistAuthorization": True, "filter": True},
    )


def _add_tag(app: FastAPI, service: Service, guarded: list[Any]) -> None:
    """Add the route that tags texts."""
    serving = service.serving
    texts_tagged = metrics.Counter("axml_ray_texts", description="Texts tagged.")
    failed = metrics.Counter(
        "axml_ray_failed", description="Tagging requests that ended in an error.", tag_keys=("error",)
    )
    seconds = metrics.Histogram("axml_ray_seconds", description="Duration of a tagging request.", boundaries=SECONDS)
    queued = metrics.Gauge("axml_ray_queued_texts", description="Texts in the queue for the members.")
    used = metrics.Gauge("axml_ray_members_used", description="Members that answered the last request.")
    refused = (401,) if guarded else ()

    @app.post(
        "/v1/tag",
        response_model=TagResponse,
        responses=problem_responses(400, *refused, 408, 413, 415, 422, 500, 503, 504),
        dependencies=guarded,
        summary="Tag one text or many",
    )
    async def tag(request: Annotated[TagRequest, Body()]) -> Any:
        started = time.perf_counter()
        texts = request.texts if request.text is None else [request.text]
        try:
            async with asyncio.timeout(serving.time_limit_s):
                tagged = await service.tag(
                    texts, request.top_k, request.explain, request.threshold, request.labels, request.conditions
                )
        except BaseException as error:
            failed.inc(tags={"error": type(error).__name__})
            raise
        finally:
            seconds.observe(time.perf_counter() - started)
            queued.set(service.queued_texts)
        texts_tagged.inc(len(texts))
        used.set(len(tagged.members_used))
        content = {
            "edition": tagged.served.edition.name,
            "members": len(tagged.served.bundle.combination.members),
            "members_used": len(tagged.members_used),
            "milliseconds": round(1_000 * (time.perf_counter() - started), 2),
            "results": [
                {"words": num_words, "labels": [_as_json(tag) for tag in tags]}
                for num_words, tags in zip(tagged.num_words.tolist(), tagged.tags, strict=True)
            ],
        }
        return JSONResponse(content)


def _add_model(app: FastAPI, service: Service, guarded: list[Any]) -> None:
    """Add the routes that describe the model, its labels and the example texts."""
    serving = service.serving
    refused = (401,) if guarded else ()

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
            "texts": MAX_TEXTS,
            "characters": MAX_CHARACTERS,
            "labels": MAX_LABELS,
            "explanations": MAX_EXPLANATIONS,
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


def _add_health(app: FastAPI, service: Service) -> None:
    """Add the liveness and readiness checks."""

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
                used = await service.fan_out.call("ready", service.served.edition)
        except TimeoutError:
            return problem(503, "no member answers; try again soon", headers={"Retry-After": "2"})
        return {"ready": True, "members": len(service.served.bundle.combination.members), "members_used": len(used)}


def _describe_problems(app: FastAPI) -> None:
    """Add the schema of `Problem`, to which `problem_responses` refers, and which no route returns, to OpenAPI."""
    original_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = original_openapi()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(schema.pop("$defs", {}))
        schemas["Problem"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _as_json(tag: Tag) -> dict[str, Any]:
    content = {"label": tag.label, "name": tag.name, "score": tag.score, "probability": tag.probability}
    return content if tag.explanation is None else {**content, "explanation": tag.explanation.as_json()}
