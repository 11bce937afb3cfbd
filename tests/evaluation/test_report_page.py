"""The HTML report: self-contained, escaped, accessible and complete.

python -m pytest tests/evaluation/test_report_page.py
"""

import json
import re
from html.parser import HTMLParser

import pytest
from evaluation.toy_run import EVIL, TREES, write_corpus, write_run

from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts, evaluate_predictions
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.evaluation.reports.examples import LabelExplanation, best_and_worst, build_examples
from axml_ray.evaluation.reports.report_page import write_page
from axml_ray.settings import EvaluationSettings

SETTINGS = EvaluationSettings()
VOID = {"meta", "link", "br", "img", "input"}


class Tags(HTMLParser):
    """Collects all tags with their attributes; raises if one is not closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def of(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    home = tmp_path_factory.mktemp("page")
    index = write_corpus(home)
    run = write_run(home)
    training = TrainingCounts(index.counts, 300)
    predictions = Predictions.open(run / "predictions/test")
    metrics = {
        "corpus": EVIL,
        "split": "test",
        **evaluate_predictions(predictions, training, SETTINGS),
        "seconds": {"knn": 2.5},
    }
    texts = [f"</style><img src=x onerror=alert({row})>" for row in range(10)]
    names = [EVIL] * len(index)
    explained = [LabelExplanation([("img", 9, 12, 1.0)], [(EVIL, 0.25)])] * 3
    example_groups = [
        build_examples(predictions, rows, texts, names, index.counts, dict.fromkeys(rows, explained))
        for rows in best_and_worst(predictions)
    ]
    return run, metrics, example_groups


def write_html(content, tmp_path, **changes):
    run, metrics, example_groups = content
    arguments = {
        "metrics": json.loads(json.dumps(metrics)),
        "name": EVIL,
        "journals": [run / f"tree-{tree}" / "training.jsonl" for tree in range(TREES)],
        "best": example_groups[0],
        "worst": example_groups[1],
    } | changes
    path = tmp_path / "report" / "index.html"
    write_page(path, arguments.pop("metrics"), **arguments)
    assert [each.name for each in path.parent.iterdir()] == ["index.html"]
    return path.read_text(encoding="utf-8")


def test_page_loads_no_resources_and_runs_no_script(content, tmp_path):
    page = Tags(write_html(content, tmp_path))
    assert not {"script", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "action", "data"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
    style = "".join(page.text)
    assert "@import" not in style and "url(" not in style
    assert {"http-equiv": "Content-Security-Policy"}.items() <= page.of("meta")[-1].items()


def test_names_and_texts_are_escaped(content, tmp_path):
    html = write_html(content, tmp_path)
    page = Tags(html)
    assert "<script" not in html and "<img" not in html and "</style><" not in html.replace("</style>\n", "", 1)
    text = "".join(page.text)
    assert EVIL in text and "</style><img src=x onerror=alert(3)>" in text
    assert html.count("<mark") == 20 * 3 and ">img</mark>" in html


def test_all_sections_contain_their_numbers(content, tmp_path):
    _, metrics, _ = content
    html = write_html(content, tmp_path)
    page = Tags(html)
    sections = [each["id"] for each in page.of("section")]
    assert sections == ["scores", "bands", "calibration", "training", "documents"]
    assert {each["href"][1:] for each in page.of("a")} == set(sections)
    text = " ".join("".join(page.text).split())
    for scores in (metrics["ensemble"], *metrics["members"].values(), metrics["bands"][2]["ensemble"]):
        assert f"{scores['P@1']:.2f}" in text
    low, high = metrics["intervals"]["ensemble"]["nDCG@5"]
    assert f"{low:.1f} – {high:.1f}" in text
    for chart in ("Loss of level 1", "Validation nDCG@5 of level 2", "Reliability", "label frequency"):
        assert chart in text
    assert html.count('role="img"') == 7
    assert len(re.findall(r"<details[^>]*><summary><b>test-", html)) == 20


def test_probabilities_have_a_line_and_their_error(content, tmp_path):
    _, metrics, _ = content
    assert "calibrated probability" not in write_html(content, tmp_path)
    probabilities = metrics["calibration"] | {"expected_error": 0.1234}
    html = write_html(content, tmp_path, metrics=metrics | {"probabilities": probabilities})
    page = " ".join("".join(Tags(html).text).split())
    assert "calibrated probability" in html and " 12.3." in page


def test_fitted_weights_have_a_table(content, tmp_path):
    about = {"weights": {"knn": 0.25}, "documents": 3188, "scores": {"knn": 71.512}}
    html = write_html(content, tmp_path, metrics=content[1] | {"combiner": about})
    assert all(text in Tags(html).text for text in ("0.25", "71.51")) and "3,188" in html
    assert "Fitted weights" not in write_html(content, tmp_path)


def test_page_is_accessible_and_responsive(content, tmp_path):
    html = write_html(content, tmp_path)
    page = Tags(html)
    assert page.of("html")[0]["lang"] == "en" and page.of("title")
    assert any(each.get("name") == "viewport" for each in page.of("meta"))
    assert "prefers-color-scheme: dark" in html and ":focus-visible" in html
    for region in page.of("div"):
        if region.get("class") == "scroll":
            assert region["tabindex"] == "0" and region["aria-label"]
    for chart in page.of("svg"):
        assert chart.get("aria-label") or chart.get("aria-hidden") == "true"
    names = [each["id"] for _, each in page.tags if "id" in each]
    assert len(names) == len(set(names))
    assert {each["aria-labelledby"] for each in page.of("section")} <= set(names)
    assert all(each.get("scope") for each in page.of("th"))


def test_missing_parts_are_left_out(content, tmp_path):
    _, metrics, _ = content
    bare = {key: value for key, value in metrics.items() if key != "seconds"}
    bare["calibration"] = metrics["calibration"] | {"expected_error": None}
    html = write_html(content, tmp_path, metrics=bare, journals=[tmp_path / "none.jsonl"], best=[], worst=[])
    page = Tags(html)
    assert [each["id"] for each in page.of("section")] == ["scores", "bands", "calibration", "documents"]
    assert "No documents." in html


def test_a_repeated_training_step_counts_once(content, tmp_path):
    journal = tmp_path / "training.jsonl"
    rows = [{"tree": 0, "level": 1, "step": step, "loss": loss} for step, loss in ((1, 0.9), (2, 0.8), (2, 0.7))]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    html = write_html(content, tmp_path, journals=[journal])
    loss = html[html.index("Loss of level 1") : html.index("Validation nDCG@5 of level 1")]
    assert "<td>0.7</td>" in loss and "<td>0.8</td>" not in loss
    assert "No data." in html


def test_writing_twice_gives_equal_bytes(content, tmp_path):
    assert write_html(content, tmp_path) == write_html(content, tmp_path)
