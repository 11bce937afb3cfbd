"""Every error as a problem document (RFC 9457): what is wrong, where, and the limit that was passed."""

import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from axml_ray.settings import SettingsError
from serve_app.batching import Busy
from serve_app.serving import nearest

MEDIA_TYPE = "application/problem+json"
LIMITS = ("max_length", "min_length", "le", "ge", "lt", "gt")


class Wrong(BaseModel):
    """A part of a request that is wrong."""

    field: str
    """Such as `texts.3`."""
    message: str
    """What is wrong with it."""
    limit: float | None = None
    """The limit that it passed."""


class Problem(BaseModel):
    """An error."""

    type: str = "about:blank"
    """Nothing is known beyond the status."""
    title: str
    """Of the status."""
    status: int
    """Of HTTP."""
    detail: str
    """What is wrong, and the mend."""
    errors: list[Wrong] = []
    """The fields that are wrong."""


def problem(
    status: int, detail: str, errors: list[Wrong] | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """The response for an error."""
    content = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or [])
    return JSONResponse(content.model_dump(exclude_none=True), status, headers, media_type=MEDIA_TYPE)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problems that a route may answer with, for OpenAPI."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def add_handlers(app: FastAPI, fields: Iterable[str]) -> None:
    """Make every error of an app a problem document.

    Args:
        app: to be changed.
        fields: that a request's body may have.
    """

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> Response:
        sent = request.headers.get("content-type", "")
        if error.body and not is_json(sent):  # FastAPI then doesn't parse it
            detail = f"send the header Content-Type: application/json ({f'it is {sent}' if sent else 'there is none'})"
            return problem(415, detail, [Wrong(field="Content-Type", message=detail)])
        wrong = [_wrong(one, fields) for one in error.errors()]
        return problem(422, "; ".join(f"{one.field}: {one.message}" for one in wrong[:5]), wrong)

    @app.exception_handler(SettingsError)
    def _refused(request: Request, error: SettingsError) -> Response:
        error = getattr(error, "cause", error)  # of an error in another process, which Ray's own has the trace of
        field, _, message = str(error).partition(": ")
        return problem(422, str(error), [Wrong(field=field, message=message)])

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
            detail = f"body: not UTF-8 (byte {error.__cause__.start})"
        return problem(error.status_code, detail, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    def _failed(request: Request, error: Exception) -> Response:
        return problem(500, "the server failed; its log says why")


def is_json(content_type: str) -> bool:
    """Whether a header says that a body is JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _wrong(error: Any, fields: Iterable[str]) -> Wrong:
    place = [str(part) for part in error["loc"][1:]]  # after body or query
    if error["type"] == "json_invalid":
        said = (error.get("ctx") or {}).get("error", "")
        return Wrong(field="body", message=f"not JSON ({said} at character {error['loc'][-1]})")
    if error["type"] == "extra_forbidden":
        return Wrong(field=".".join(place), message=f"no such field; {nearest(place[-1], fields)}")
    context = error.get("ctx") or {}
    limit = next((context[key] for key in LIMITS if isinstance(context.get(key), int | float)), None)
    said = error["msg"].removeprefix("Value error, ")
    finite = limit if limit is None or math.isfinite(limit) else None
    return Wrong(field=".".join(place) or "body", message=said, limit=finite)
