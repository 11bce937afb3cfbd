"""The API over real HTTP, all members in one replica: the same answers as the Tagger's, and every error a problem.

Requests drawn from its OpenAPI document, right ones and wrong ones, are answered as the document says.
"""

import gzip
import json
import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from raw_http import head, raw
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from small_server import MEMBERS, PARTS, TREES

from axml_ray import LabelConditions, Tagger
from axml_ray.core.errors import SettingsError
from serve_app.__main__ import check_fits
from serve_app.settings import ApplicationSettings

PROBLEM = "application/problem+json"


def tag(server: str, **content: Any) -> requests.Response:
    return requests.post(f"{server}/v1/tag", json=content, timeout=60)


def refused(response: requests.Response, status: int, *fields: str) -> dict[str, Any]:
    """The problem that a response is, with these fields named."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    content = response.json()
    assert content["status"] == status and content["title"] and content["detail"] and content["type"] == "about:blank"
    assert [one["field"] for one in content["errors"]] == list(fields)
    return content


class TestTag:
    def test_gives_what_the_tagger_gives(self, server: str, tagger: Tagger, texts: list[str]) -> None:
        answer = tag(server, texts=texts[:30], top_k=7).json()
        assert answer["members"] == answer["members_used"] == MEMBERS
        assert answer["milliseconds"] > 0
        for result, tags in zip(answer["results"], tagger.tag(texts[:30], top_k=7), strict=True):
            assert [one["label"] for one in result["labels"]] == [one.label for one in tags]
            assert [one["name"] for one in result["labels"]] == [one.name for one in tags]
            np.testing.assert_allclose([one["score"] for one in result["labels"]], [one.score for one in tags], 1e-4)
            np.testing.assert_allclose(
                [one["probability"] for one in result["labels"]], [one.probability for one in tags], atol=0.02
            )
            assert all("explanation" not in one for one in result["labels"])

    def test_through_a_proxy_of_rays_bodies_are_gzip_and_head_is_known(self, server: str, texts: list[str]) -> None:
        content = {"texts": texts[:3]}
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        body = gzip.compress(json.dumps(content).encode())
        answer = requests.post(f"{server}/v1/tag", data=body, headers=headers, timeout=60)
        assert answer.json()["results"] == tag(server, **content).json()["results"]
        for path in ("/healthz", "/readyz", "/v1/model"):
            assert requests.head(f"{server}{path}", timeout=60).status_code == 200

    def test_one_text_is_a_list_of_one(self, server: str, texts: list[str]) -> None:
        one, several = tag(server, text=texts[3]).json(), tag(server, texts=[texts[3]]).json()
        assert one["results"] == several["results"] and len(one["results"]) == 1
        assert len(one["results"][0]["labels"]) == 5

    def test_a_threshold_is_a_least_probability(self, server: str, texts: list[str]) -> None:
        every = tag(server, text=texts[0], top_k=20).json()["results"][0]["labels"]
        least = sorted(one["probability"] for one in every)[len(every) // 2]
        some = tag(server, text=texts[0], top_k=20, threshold=least).json()["results"][0]["labels"]
        assert some == [one for one in every if one["probability"] >= least] and len(some) > 0

    def test_given_labels_are_scored_alone(self, server: str, tagger: Tagger, texts: list[str]) -> None:
        wanted = [tagger.labels[4], tagger.labels[-1], tagger.labels[0]]
        found = tag(server, text=texts[1], labels=wanted, top_k=1).json()["results"][0]["labels"]
        [tags] = tagger.tag([texts[1]], labels=wanted)
        assert [one["label"] for one in found] == [one.label for one in tags] and len(found) == 3
        np.testing.assert_allclose([one["score"] for one in found], [one.score for one in tags], rtol=1e-4)

    @pytest.mark.parametrize("explain", [False, True])
    def test_conditions_are_those_of_the_tagger(
        self, server: str, tagger: Tagger, texts: list[str], explain: bool
    ) -> None:
        some = tagger.labels[:3]
        for conditions in (
            {"allowed_labels": some, "excluded_prefixes": [some[0]]},
            {"excluded_labels": some},
            {"allowed_prefixes": [some[0][:2]]},
        ):
            found = tag(server, texts=texts[:3], top_k=2, explain=explain, **conditions).json()["results"]
            rows = tagger.tag(texts[:3], top_k=2, conditions=LabelConditions(**conditions))
            assert [[one["label"] for one in row["labels"]] for row in found] == [
                [one.label for one in row] for row in rows
            ]
            assert all(len(row["labels"]) == 2 for row in found)
            assert [one["score"] for row in found for one in row["labels"]] == pytest.approx(
                [one.score for row in rows for one in row], rel=1e-4
            )

    def test_explains(self, server: str, tagger: Tagger, texts: list[str]) -> None:
        [first, *_] = tag(server, text=texts[2], explain=True, top_k=2).json()["results"][0]["labels"]
        [[tag_, *_]] = tagger.tag([texts[2]], explain=True, top_k=2)
        assert tag_.explanation is not None
        mine, theirs = first["explanation"], tag_.explanation.as_json()
        assert [one["word"] for one in mine["words"]] == [one["word"] for one in theirs["words"]]
        np.testing.assert_allclose(
            [one["weight"] for one in mine["words"]], [one["weight"] for one in theirs["words"]], atol=1e-5
        )
        assert sum(one["weight"] for one in mine["words"]) == pytest.approx(1, abs=1e-4)
        names = {one["member"]: [step["name"] for step in one["path"]] for one in mine["paths"]}
        assert names == {one["member"]: [step["name"] for step in one["path"]] for one in theirs["paths"]}
        assert len(names) == TREES
        assert [one["member"] for one in mine["contributions"]] == [one["member"] for one in theirs["contributions"]]
        for part in ("score", "share", "points"):
            np.testing.assert_allclose(
                [one[part] for one in mine["contributions"]], [one[part] for one in theirs["contributions"]], atol=1e-4
            )
        assert len(mine["contributions"]) == MEMBERS
        assert sum(one["share"] for one in mine["contributions"]) == pytest.approx(1)

    def test_as_many_labels_as_there_are_count_as_explained(self, server: str, tagger: Tagger) -> None:
        label = tagger.labels[0]
        for wanted in ({"allowed_labels": [label], "top_k": 20}, {"labels": [label] * 20}):
            answer = tag(server, texts=["key1"] * 17, explain=True, **wanted)
            assert answer.status_code == 200 and len(answer.json()["results"]) == 17

    def test_given_labels_are_explained_by_their_own_scores(
        self, server: str, tagger: Tagger, texts: list[str]
    ) -> None:
        [one] = tag(server, text=texts[1], labels=[tagger.labels[-1]], explain=True).json()["results"][0]["labels"]
        parts = one["explanation"]["contributions"]
        assert len(parts) == MEMBERS and all(part["points"] >= 0 for part in parts)
        networks = [part["score"] for part in parts if part["member"].startswith("network")]
        assert len(networks) == TREES and all(score > 0 for score in networks)

    @pytest.mark.parametrize("text", ["😀 w2", "w1 " * 1_600])
    def test_takes_any_text(self, server: str, text: str) -> None:
        response = tag(server, text=text, explain=True)
        assert response.status_code == 200, response.text
        [result] = response.json()["results"]
        assert result["labels"] and result["words"] >= 1

    @pytest.mark.parametrize("text", ["", " ", "\0", "… /SEP/"])
    def test_a_text_without_a_word_has_no_labels(self, server: str, tagger: Tagger, text: str) -> None:
        response = tag(server, texts=["w2", text], explain=True)
        assert response.status_code == 200, response.text
        with_words, without = response.json()["results"]
        assert with_words["labels"] and without == {"words": 0, "labels": []}
        wanted = [tagger.labels[3], tagger.labels[0]]
        [result] = tag(server, text=text, labels=wanted).json()["results"]
        assert [(one["label"], one["score"]) for one in result["labels"]] == [(label, 0) for label in wanted]
        [tags] = tagger.tag([text], labels=wanted)
        assert [one["probability"] for one in result["labels"]] == [one.probability for one in tags]


class TestRefusals:
    def test_names_each_field_and_its_limit(self, server: str) -> None:
        content = refused(tag(server, texts=["a", "b" * 100_001], top_k=0, sure=True), 422, "texts.1", "top_k", "sure")
        assert [one.get("limit") for one in content["errors"]] == [100_000, 1, None]
        assert refused(tag(server, texts=["a"] * 65), 422, "texts")["errors"][0]["limit"] == 64
        refused(tag(server, texts=[]), 422, "texts")
        refused(tag(server, text="a", threshold=1.5), 422, "threshold")
        refused(tag(server, text="a", top_k=1_001), 422, "top_k")
        refused(tag(server, text="a", top_k="5"), 422, "top_k")
        refused(tag(server, text="a", labels=[]), 422, "labels")
        refused(tag(server, text=["a"]), 422, "text")
        refused(tag(server, text=None), 422, "text")
        refused(tag(server), 422, "body")
        assert "either" in refused(tag(server, text="a", texts=["a"]), 422, "body")["detail"]

    def test_an_unknown_field_is_met_with_one_like_it(self, server: str) -> None:
        for body in ("[" * 100_000, '{"text": "a", "top_k": 1' + "0" * 5_000 + "}"):
            answer = requests.post(f"{server}/v1/tag", body, headers={"Content-Type": "application/json"}, timeout=60)
            refused(answer, 422, "body")
        assert len(tag(server, text="a", **{f"x{number}": 1 for number in range(100)}).json()["errors"]) == 20
        content = refused(tag(server, text="a", topk=3), 422, "topk")
        assert content["detail"] == "topk: no such field; did you mean top_k?"
        assert "there are text, texts, top_k, " in refused(tag(server, text="a", x=3), 422, "x")["detail"]

    @pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
    def test_a_body_that_is_not_said_to_be_json(self, server: str, kind: str | None) -> None:
        headers = {"Content-Type": kind} if kind else {}
        response = requests.post(f"{server}/v1/tag", b'{"text": "w1"}', headers=headers, timeout=60)
        detail = refused(response, 415, "Content-Type")["detail"]
        assert "Content-Type: application/json" in detail and (kind or "none") in detail

    @pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/tag+json"])
    def test_a_body_that_is_said_to_be_json(self, server: str, kind: str) -> None:
        headers = {"Content-Type": kind}
        assert requests.post(f"{server}/v1/tag", b'{"text": "w1"}', headers=headers, timeout=60).status_code == 200
        response = requests.post(f"{server}/v1/tag", b'{"text": 1}', headers=headers, timeout=60)
        refused(response, 422, "text")

    def test_an_unknown_label_is_met_with_one_like_it(self, server: str, tagger: Tagger) -> None:
        content = refused(tag(server, text="a", labels=[tagger.labels[0] + "x"]), 422, "labels")
        assert tagger.labels[0] in content["detail"]

    def test_conditions(self, server: str, tagger: Tagger) -> None:
        label = tagger.labels[0]
        content = refused(tag(server, text="a", excluded_labels=[label + "x"]), 422, "excluded_labels")
        assert label in content["detail"]
        refused(tag(server, text="a", allowed_prefixes=["x" + label]), 422, "allowed_prefixes")
        refused(tag(server, text="a", excluded_prefixes=[""]), 422, "excluded_labels")
        refused(tag(server, text="a", allowed_labels=[]), 422, "allowed_labels")
        refused(tag(server, text="a", labels=[label], excluded_labels=[label]), 422, "body")

    def test_a_long_or_unknown_label_comes_back_short(self, server: str) -> None:
        assert len(refused(tag(server, text="a", labels=["x" * 50_000]), 422, "labels")["detail"]) < 200

    def test_more_explanations_than_may_be_asked_for(self, server: str, tagger: Tagger) -> None:
        wanted = list(tagger.labels[:9])
        content = refused(tag(server, texts=["a"] * 36, labels=wanted, explain=True), 422, "explain")
        assert "324 labels of all texts; at most 320" in content["detail"]
        assert tag(server, texts=["a"] * 36, labels=wanted).status_code == 200

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nothing", b'{"text": 1}', b'{"text": NaN}', b"{" * 5_000])
    def test_what_is_not_a_request(self, server: str, body: bytes) -> None:
        response = requests.post(f"{server}/v1/tag", body, headers={"Content-Type": "application/json"}, timeout=60)
        assert response.status_code in (400, 422) and response.headers["content-type"] == PROBLEM, response.text

    def test_what_is_not_utf_8(self, server: str) -> None:
        body = b'{"text": "\xff\xfe"}'
        response = requests.post(f"{server}/v1/tag", body, headers={"Content-Type": "application/json"}, timeout=60)
        assert "UTF-8" in refused(response, 400)["detail"]

    def test_half_of_a_character(self, server: str) -> None:
        body = json.dumps({"texts": ["w1", "\ud800 w2"]})  # in JSON an escape, so UTF-8 holds it
        response = requests.post(f"{server}/v1/tag", body, headers={"Content-Type": "application/json"}, timeout=60)
        refused(response, 422, "texts.1")

    def test_large_bodies(self, server: str) -> None:
        content = refused(tag(server, text="x" * 10_000_000), 413, "body")
        assert content["errors"][0]["limit"] == 200_000

    def test_a_large_body_of_unknown_length(self, server: str) -> None:
        chunks = (b"x" * 50_000 for _ in range(6))
        response = requests.post(f"{server}/v1/tag", chunks, timeout=60)
        refused(response, 413, "body")

    def test_a_sender_who_leaves_half_way_harms_nobody(self, server: str, texts: list[str]) -> None:
        place = urlsplit(server)
        for _ in range(5):
            with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
                connection.sendall(head(1_000) + b'{"text": "half')
        assert tag(server, text=texts[0]).status_code == 200

    def test_other_places_and_methods(self, server: str) -> None:
        refused(requests.get(f"{server}/v1/nowhere", timeout=60), 404)
        refused(requests.get(f"{server}/v1/tag", timeout=60), 405)
        refused(requests.get(f"{server}/page/../app.py", timeout=60), 404)
        for path in ("/page/..%2fapp.py", "/page/%2e%2e/%2e%2e/pyproject.toml", "//etc/passwd"):
            assert b"404" in raw(server, f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()).split(b"\r\n")[0]


class TestLabels:
    def test_finds_by_words_of_the_name_in_any_case(self, server: str, tagger: Tagger) -> None:
        index = tagger.codec.index
        name = index.names[5]
        found = requests.get(f"{server}/v1/labels", {"query": name.upper()}, timeout=60).json()
        assert found[0]["documents"] == max(one["documents"] for one in found)
        assert {"label": index.labels[5], "name": name, "documents": int(index.counts[5])} in found
        assert all(name.lower() in one["name"].lower() for one in found)

    def test_everything_by_frequency_without_a_query(self, server: str, tagger: Tagger) -> None:
        found = requests.get(f"{server}/v1/labels", {"limit": 10}, timeout=60).json()
        assert [one["label"] for one in found] == list(tagger.labels[:10])

    def test_nothing(self, server: str) -> None:
        assert requests.get(f"{server}/v1/labels", {"query": "no(such.*name"}, timeout=60).json() == []

    def test_limits(self, server: str) -> None:
        refused(requests.get(f"{server}/v1/labels", {"limit": 0}, timeout=60), 422, "limit")
        refused(requests.get(f"{server}/v1/labels", {"query": "x" * 201}, timeout=60), 422, "query")


class TestTheRest:
    def test_the_model(self, server: str, tagger: Tagger) -> None:
        model = requests.get(f"{server}/v1/model", timeout=60).json()
        assert model["labels"] == len(tagger.labels) and model["trees"] == TREES
        assert sum(one["weight"] for one in model["members"]) == pytest.approx(1) and len(model["members"]) == MEMBERS
        assert model["limits"] == {
            "texts": 64,
            "characters": 100_000,
            "labels": 1_000,
            "explanations": 320,
            "body_bytes": 200_000,
        }

    def test_health(self, server: str) -> None:
        assert requests.get(f"{server}/healthz", timeout=60).json() == {"status": "ok"}
        assert requests.get(f"{server}/readyz", timeout=60).json() == {
            "ready": True,
            "members": MEMBERS,
            "members_used": MEMBERS,
        }

    def test_examples(self, server: str) -> None:
        assert requests.get(f"{server}/v1/examples", timeout=60).json() == ["w1 w2 w3", "w4 w5"]

    def test_headers_keep_a_browser_safe(self, server: str) -> None:
        for path in ("/", "/v1/model", "/nowhere", "/docs", "/openapi.json"):
            headers = requests.get(f"{server}{path}", headers={"Origin": "http://elsewhere"}, timeout=60).headers
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "http" not in policy
            assert "access-control-allow-origin" not in headers
            assert ("unsafe-inline" in policy) == (path == "/docs")

    def test_the_documentation_needs_no_other_host(self, server: str) -> None:
        page = requests.get(f"{server}/docs", timeout=60).text
        links = re.findall(r"""(?:href|src)="([^"]+)"|url: '([^']+)'""", page)
        assert len(links) == 4
        for link in map("".join, links):  # relative, as a proxy has another address
            answer = requests.get(f"{server}/{link}", timeout=60)
            assert answer.status_code == 200 and len(answer.content) > 500
            assert answer.headers["content-type"].split(";")[0].rpartition("/")[2] in {
                "css",
                "javascript",
                "json",
                "png",
            }
        document = requests.get(f"{server}/openapi.json", timeout=60).json()
        assert {"/v1/tag", "/v1/labels", "/v1/model", "/healthz", "/readyz"} <= set(document["paths"])
        assert document["components"]["schemas"]["TagRequest"]["properties"]["texts"]


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


def test_metrics_count_texts_and_failures(server: str, texts: list[str]) -> None:
    import ray

    [node] = ray.nodes()
    place = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    for _ in range(3):
        assert requests.post(f"{server}/v1/tag", json={"texts": texts[:4]}, timeout=60).status_code == 200
    unknown = requests.post(f"{server}/v1/tag", json={"text": "", "labels": ["no such label"]}, timeout=60)
    assert unknown.status_code == 422
    later = {"ray_axml_ray_seconds_bucket", "ray_axml_ray_members_used"}  # each is sent at a time of its own
    end = time.monotonic() + 60
    while True:
        lines = requests.get(place, timeout=60).text.splitlines()
        told = {line.split("{")[0]: line.rpartition(" ")[2] for line in lines if line.startswith("ray_axml_ray")}
        texts_told = [value for name, value in told.items() if name.startswith("ray_axml_ray_texts")]
        if texts_told and float(texts_told[0]) >= 12 and not later - told.keys():
            break
        assert time.monotonic() < end, told
        time.sleep(0.5)
    assert float(told["ray_axml_ray_members_used"]) == MEMBERS
    assert any(name.startswith("ray_axml_ray_failed") for name in told)
    assert any(line.startswith("ray_serve_") for line in lines)


def test_replicas_that_can_never_start_are_refused(server: str, serving_bundle: Path) -> None:
    check_fits(ApplicationSettings(bundle=serving_bundle, cpus=0.1))
    for many in ({"replicas": 1_000}, {"cpus": 1_000.0, "colocate_members": False}, {"ingress_replicas": 10_000}):
        with pytest.raises(SettingsError, match="lower replicas or cpus"):
            check_fits(ApplicationSettings(bundle=serving_bundle, **many))
    with pytest.raises(SettingsError, match=rf"{5 * PARTS} replicas of members × 2 CPUs"):
        check_fits(ApplicationSettings(bundle=serving_bundle, colocate_members=False, replicas=5, cpus=2))
