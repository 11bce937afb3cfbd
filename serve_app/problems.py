"""Errors of the API as problem documents (RFC 9457), with the field that is wrong and the limit that it exceeds."""

import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from axml_ray.core.errors import SettingsError
from serve_app.batching import Busy
from serve_app.settings import nearest

MEDIA_TYPE = "application/problem+json"
LIMITS = ("max_length", "min_length", "le", "ge", "lt", "gt")


class FieldError(BaseModel):
    """An error in a field of a request."""

    field: str
    """Path of the field, such as `texts.3`."""
    message: str
    """Description of the error."""
    limit: float | None = None
    """The limit that the value exceeds."""


class Problem(BaseModel):
    """A problem document."""

    type: str = "about:blank"
    """Always "about:blank": the status says what kind of problem it is."""
    title: str
    """Phrase of the HTTP status."""
    status: int
    """HTTP status code."""
    detail: str
    """What is wrong, and how to fix it."""
    errors: list[FieldError] = []
    """Errors of single fields."""


def problem(
    status: int, detail: str, errors: list[FieldError] | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return the response for an error."""
    content = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or [])
    return JSONResponse(content.model_dump(exclude_none=True), status, headers, media_type=MEDIA_TYPE)


MAX_ERRORS = 20
"""Most fields that an answer names: a body of 4 MiB can have some 100,000 wrong ones."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of the problems that a route may answer with."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def add_handlers(app: FastAPI, fields: Iterable[str]) -> None:
    """Make every error of an application a problem document; `fields` of a body are advice on unknown ones."""

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> Response:
        sent = request.headers.get("content-type", "")
        if error.body and not is_json(sent):  # FastAPI does not parse such a body, and reports the wrong field
            detail = f"send the header Content-Type: application/json ({f'it is {sent}' if sent else 'there is none'})"
            return problem(415, detail, [FieldError(field="Content-Type", message=detail)])
        errors = [_field_error(details, fields) for details in error.errors()[:MAX_ERRORS]]
        return problem(422, "; ".join(f"{wrong.field}: {wrong.message}" for wrong in errors[:5]), errors)

    @app.exception_handler(SettingsError)
    def _refused(request: Request, error: SettingsError) -> Response:
        error = getattr(error, "cause", error)  # Ray wraps errors of other processes, with the traceback as their text
        field, _, message = str(error).partition(": ")
        return problem(422, str(error), [FieldError(field=field, message=message)])

    @app.exception_handler(Busy)
    def _busy(request: Request, error: Busy) -> Response:
        return problem(503, str(error), headers={"Retry-After": str(error.seconds)})

    @app.exception_handler(TimeoutError)
    def _late(request: Request, error: TimeoutError) -> Response:
        return problem(504, str(error) or "no answer within the time limit; send fewer or shorter texts")

    @app.exception_handler(StarletteHTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        detail = error.detail
        if isinstance(error.__cause__, UnicodeDecodeError):
            detail = f"body: not UTF-8 (byte {error.__cause__.start}); encode the JSON as UTF-8"
        elif isinstance(error.__cause__, RecursionError | ValueError):
            detail = "body: not JSON that can be read: it is nested too deeply, or a number is too long"
            return problem(422, detail, [FieldError(field="body", message=detail)])
        return problem(error.status_code, detail, headers=dict(error.headers or {}))


def is_json(content_type: str) -> bool:
    """Return whether the value of a Content-Type header denotes JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _field_error(error: Any, fields: Iterable[str]) -> FieldError:
    """Convert an error of pydantic."""
    path = [str(key) for key in error["loc"][1:]]  # the first key is "body" or "query"
    if error["type"] == "json_invalid":
        reason = (error.get("ctx") or {}).get("error", "")
        return FieldError(field="body", message=f"not JSON ({reason} at character {error['loc'][-1]})")
    if error["type"] == "extra_forbidden":
        return FieldError(field=".".join(path), message=f"no such field; {nearest(path[-1], fields)}")
    context = error.get("ctx") or {}
    limit = next((context[key] for key in LIMITS if isinstance(context.get(key), int | float)), None)
    message = error["msg"].removeprefix("Value error, ")
    finite = limit if limit is None or math.isfinite(limit) else None  # JSON has no infinity
    return FieldError(field=".".join(path) or "body", message=message, limit=finite)
