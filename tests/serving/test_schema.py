"""Requests drawn from the OpenAPI document, right ones and wrong ones: what comes back is as the document says."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from axml_ray import LabelConditions

OPERATIONS = {("POST", "/v1/tag"), ("GET", "/v1/labels"), ("GET", "/v1/model"), ("GET", "/v1/examples")} | {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
}


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_are_as_the_document_says(server: str, mode: GenerationMode) -> None:
    document, checked = schemathesis.openapi.from_url(f"{server}/openapi.json"), set()
    for found in document.get_all_operations():
        operation = found.ok()
        takes_something = operation.method == "post" or operation.query

        if mode is GenerationMode.NEGATIVE and not takes_something:
            continue  # nothing can be wrong

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=60 if takes_something else 2, suppress_health_check=list(HealthCheck), deadline=None)
        def check(case: schemathesis.Case) -> None:
            # Which labels there are is not for a schema to say, nor how many of all texts may be explained.
            names = {"labels", *LabelConditions.model_fields}
            refusable = isinstance(case.body, dict) and (names & case.body.keys() or case.body.get("explain"))
            unsaid = [positive_data_acceptance] if refusable else []
            answer = case.call(timeout=60)
            if answer.status_code == 413:  # a refusal that schemathesis doesn't know
                unsaid.append(negative_data_rejection)
            case.validate_response(answer, excluded_checks=unsaid)

        check()
        checked.add((operation.method.upper(), operation.path))
    assert checked == OPERATIONS if mode is GenerationMode.POSITIVE else checked
