"""The report as a browser reads it: self-contained, everything escaped, every part there.

python -m pytest tests/evaluation/test_page.py
"""

import json
import re
from html.parser import HTMLParser

import pytest
from evaluation.toy_run import EVIL, TREES, write_corpus, write_run

from axml_ray.evaluation.examples import Reason, examples, right_and_wrong
from axml_ray.evaluation.judge import Labels, against, judge
from axml_ray.evaluation.page import write_page
from axml_ray.evaluation.predictions import Predictions
from axml_ray.settings import EvaluationSettings

SETTINGS = EvaluationSettings(resamples=20)
VOID = {"meta", "link", "br", "img", "input"}


class Tags(HTMLParser):
    """Every tag with its attributes; fails where one isn't closed."""

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
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("page")
    index = write_corpus(home)
    run = write_run(home)
    other = write_run(home, "other", seed=7)
    labels = Labels(index.counts, 300)
    predictions, others = (Predictions.open(each / "predictions/test") for each in (run, other))
    metrics = {"corpus": EVIL, "split": "test", **judge(predictions, labels, SETTINGS), "seconds": {"knn": 2.5}}
    compared = {"run": EVIL, "measures": against(predictions, others, labels, SETTINGS)}
    texts = [f"</style><img src=x onerror=alert({row})>" for row in range(10)]
    names = [EVIL] * len(index)

    def explain(text, labels):
        return [Reason([("img", 9, 12, 1.0)], [(EVIL, 0.25)]) for _ in labels]

    shown = [
        examples(predictions, rows, texts, names, index.counts, explain)
        for rows in right_and_wrong(predictions, seed=0)
    ]
    return run, metrics, compared, shown


def written(made, tmp_path, **changes):
    run, metrics, compared, shown = made
    given = {
        "metrics": json.loads(json.dumps(metrics | {"against": compared})),
        "name": EVIL,
        "journals": [run / f"tree-{tree}" / "training.jsonl" for tree in range(TREES)],
        "right": shown[0],
        "wrong": shown[1],
    } | changes
    path = tmp_path / "report" / "index.html"
    write_page(path, given.pop("metrics"), **given)
    assert [each.name for each in path.parent.iterdir()] == ["index.html"]
    return path.read_text(encoding="utf-8")


def test_nothing_is_fetched_and_nothing_runs(made, tmp_path):
    page = Tags(written(made, tmp_path))
    assert not {"script", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "action", "data"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
    style = "".join(page.text)
    assert "@import" not in style and "url(" not in style
    assert {"http-equiv": "Content-Security-Policy"}.items() <= page.of("meta")[-1].items()


def test_what_users_wrote_is_shown_as_they_wrote_it(made, tmp_path):
    html = written(made, tmp_path)
    page = Tags(html)
    assert "<script" not in html and "<img" not in html and "</style><" not in html.replace("</style>\n", "", 1)
    said = "".join(page.text)
    assert EVIL in said and "</style><img src=x onerror=alert(3)>" in said
    assert html.count("<mark") == 20 * 3 and ">img</mark>" in html


def test_every_part_is_there_with_its_numbers(made, tmp_path):
    _, metrics, compared, _ = made
    html = written(made, tmp_path)
    page = Tags(html)
    sections = [each["id"] for each in page.of("section")]
    assert sections == ["scores", "bands", "against", "calibration", "training", "documents"]
    assert {each["href"][1:] for each in page.of("a")} == set(sections)
    said = " ".join("".join(page.text).split())
    for scores in (metrics["ensemble"], *metrics["members"].values(), metrics["bands"][2]["ensemble"]):
        assert f"{scores['P@1']:.2f}" in said
    low, high = metrics["intervals"]["ensemble"]["nDCG@5"]
    assert f"{low:.1f} – {high:.1f}" in said
    assert f"{compared['measures']['P@5']['difference']:+.2f}" in said
    for chart in ("Loss of level 1", "Validation nDCG@5 of level 2", "Calibration", "label frequency"):
        assert chart in said
    assert html.count('role="img"') == 7
    assert len(re.findall(r"<details[^>]*><summary><b>test-", html)) == 20


def test_it_can_be_used_by_keyboard_and_by_ear_and_on_a_phone(made, tmp_path):
    html = written(made, tmp_path)
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


def test_what_is_missing_is_left_out(made, tmp_path):
    _, metrics, _, _ = made
    bare = {key: value for key, value in metrics.items() if key != "seconds"}
    bare["calibration"] = metrics["calibration"] | {"expected_error": None}
    html = written(made, tmp_path, metrics=bare, journals=[tmp_path / "none.jsonl"], right=[], wrong=[])
    page = Tags(html)
    assert [each["id"] for each in page.of("section")] == ["scores", "bands", "calibration", "documents"]
    assert "None to show." in html


def test_a_step_that_was_repeated_counts_once(made, tmp_path):
    journal = tmp_path / "training.jsonl"
    rows = [{"tree": 0, "level": 1, "step": step, "loss": loss} for step, loss in ((1, 0.9), (2, 0.8), (2, 0.7))]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    html = written(made, tmp_path, journals=[journal])
    loss = html[html.index("Loss of level 1") : html.index("Validation nDCG@5 of level 1")]
    assert "→ 0.7<" in loss and "→ 0.8<" not in loss
    assert "Nothing was recorded." in html


def test_a_report_replaces_the_one_before(made, tmp_path):
    assert written(made, tmp_path) == written(made, tmp_path)
