"""The scikit-learn estimator: scikit-learn's own checks, and one small fit for all its methods."""

import gc
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import ray
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import f1_score
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator

from axml_ray import AttentionXMLClassifier, Tagger
from axml_ray.core.errors import SettingsError

CLASSES = 6
SETTINGS: dict[str, Any] = {
    "corpus": {"word_vectors": "random", "word_dimension": 8},
    "members": {"network_tree": {"weight": 0}, "knn": {"weight": 0}, "linear_tree": {"weight": 1}},
    "ensemble": {"combiner": "mean"},
}
"""Linear classifiers alone, which are fitted in a moment."""


def write_texts(count: int) -> tuple[list[str], list[list[str]]]:
    """Return texts that contain a word for each of their labels, and their labels."""
    random = np.random.default_rng(0)
    texts, labels = [], []
    for number in range(count):
        keys = sorted({number % CLASSES, *random.integers(0, CLASSES, random.integers(0, 2)).tolist()})
        words = [f"own{key}" for key in keys] + [f"filler{each}" for each in random.integers(0, 8, 3)]
        texts.append(" ".join(words))
        labels.append([f"label {key}" for key in keys])
    return texts, labels


TEXTS, LABELS = write_texts(80)
INDICATOR = sparse.csr_matrix([[f"label {key}" in row for key in range(CLASSES)] for row in LABELS], dtype=int)


class ChecksOfMatrices(AttentionXMLClassifier):
    """The estimator for scikit-learn's checks, which skip those that take no matrix of numbers."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags


FITS_NUMBERS = "it fits a matrix of numbers, often with one label per row; here texts have lists of labels"
NOT_PASSED = dict.fromkeys(
    (
        "check_classifier_data_not_an_array",
        "check_classifier_multioutput",
        "check_classifier_not_supporting_multiclass",
        "check_classifiers_classes",
        "check_classifiers_multilabel_output_format_decision_function",
        "check_classifiers_multilabel_output_format_predict",
        "check_classifiers_multilabel_output_format_predict_proba",
        "check_classifiers_multilabel_representation_invariance",
        "check_classifiers_one_label",
        "check_classifiers_train",
        "check_dict_unchanged",
        "check_dont_overwrite_parameters",
        "check_estimators_dtypes",
        "check_estimators_fit_returns_self",
        "check_estimators_overwrite_params",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_fit2d_1feature",
        "check_fit2d_1sample",
        "check_fit_check_is_fitted",
        "check_fit_idempotent",
        "check_fit_score_takes_y",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_pipeline_consistency",
        "check_positive_only_tag_during_fit",
        "check_readonly_memmap_input",
    ),
    FITS_NUMBERS,
)


def test_checks_of_scikit_learn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(ChecksOfMatrices(), expected_failed_checks=NOT_PASSED, on_fail="raise")
    names: dict[str, set[str]] = {}
    for each in results:
        names.setdefault(each["status"], set()).add(each["check_name"])
    assert names["xfail"] == set(NOT_PASSED)
    assert len(names["passed"]) >= 15 and "check_estimators_unfitted" in names["passed"]
    page = Path(__file__).parents[1] / "docs" / "estimator.md"
    assert [name for name in NOT_PASSED if f"`{name}`" not in page.read_text(encoding="utf-8")] == []


def test_tags_and_parameters() -> None:
    classifier = AttentionXMLClassifier(2, "paper", settings=SETTINGS, classes=["a"], threshold=0.3)
    assert is_classifier(classifier)
    tags = get_tags(classifier)
    assert tags.input_tags.string and not tags.input_tags.two_d_array
    assert tags.classifier_tags.multi_label and not tags.classifier_tags.multi_class
    copy = clone(classifier).set_params(trees=1)
    assert copy.get_params() == {**classifier.get_params(), "trees": 1}
    for method in ("predict", "predict_proba", "top_k", "explain"):
        with pytest.raises(NotFittedError):
            getattr(copy, method)(TEXTS)
    with pytest.raises(NotFittedError):
        copy.score(TEXTS, LABELS)
    with pytest.raises(NotFittedError):
        copy.save("nowhere")


@pytest.mark.parametrize(
    ("parameters", "labels", "error", "message"),
    [
        ({"settings": {"tre": {}}}, LABELS, SettingsError, "tre: unknown setting; did you mean 'tree'"),
        ({"trees": 0}, LABELS, SettingsError, "ensemble.trees"),
        ({"preset": "best"}, LABELS, SettingsError, "preset"),
        ({"settings": {"ensemble": {"trees": 2}}}, LABELS, SettingsError, r"ensemble\.trees"),
        ({"settings": {"seed": 3}}, LABELS, SettingsError, "random_state"),
        ({"settings": {"corpus": {"test_share": 0.2}}}, LABELS, SettingsError, r"corpus\.test_share"),
        ({"classes": ["one"]}, LABELS, ValueError, "classes"),
        ({}, LABELS[1:], ValueError, "X has 80 rows and y 79"),
        ({}, INDICATOR.toarray().tolist(), ValueError, r"np\.array"),
        ({"classes": ["one"]}, INDICATOR, ValueError, "classes: expected 6"),
    ],
)
def test_mistakes_leave_no_files(
    parameters: dict[str, Any],
    labels: Any,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(error, match=message):
        AttentionXMLClassifier(**parameters).fit(TEXTS, labels)
    assert not list(tmp_path.iterdir())


def test_an_unfitted_estimator_is_pickled() -> None:
    classifier = AttentionXMLClassifier(trees=2, settings=SETTINGS)
    assert pickle.loads(pickle.dumps(classifier)).get_params() == classifier.get_params()


def test_there_is_no_saved_estimator(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"estimator\.json: not an estimator"):
        AttentionXMLClassifier.load(tmp_path)
    (tmp_path / "estimator.json").write_text('{"version": 2}')
    with pytest.raises(SettingsError, match=r"estimator\.json: not an estimator"):
        AttentionXMLClassifier.load(tmp_path)


@pytest.fixture(scope="module")
def fitted(ray_cluster: None) -> AttentionXMLClassifier:
    return AttentionXMLClassifier(trees=1, settings=SETTINGS).fit(TEXTS, LABELS)


def names_of(rows: list) -> list[list[str]]:
    return [[tag.label for tag in row] for row in rows]


class TestFitted:
    def test_predicts_lists_of_labels(self, fitted: AttentionXMLClassifier) -> None:
        assert fitted.classes_.tolist() == [f"label {key}" for key in range(CLASSES)]
        rows = fitted.predict(TEXTS)
        assert np.mean([set(row) == set(true) for row, true in zip(rows, LABELS, strict=True)]) > 0.8
        for row, tags in zip(rows, fitted.top_k(TEXTS, CLASSES), strict=True):
            assert row == [tag.label for tag in tags if tag.probability >= 0.5]

    def test_probabilities_are_those_of_the_tags(self, fitted: AttentionXMLClassifier) -> None:
        matrix = fitted.predict_proba(TEXTS[:9])
        assert matrix.shape == (9, CLASSES) and matrix.dtype == np.float32 and matrix.has_sorted_indices
        for row, tags in zip(matrix.toarray(), fitted.top_k(TEXTS[:9], 2), strict=True):
            best = np.argsort(-row, kind="stable")[:2]
            assert fitted.classes_[best].tolist() == [tag.label for tag in tags]
            assert row[best] == pytest.approx([tag.probability for tag in tags])

    def test_columns_of_other_libraries(self, fitted: AttentionXMLClassifier) -> None:
        expected = fitted.predict(TEXTS[:4])
        assert fitted.predict(pd.Series(TEXTS[:4])) == fitted.predict(pa.array(TEXTS[:4])) == expected

    def test_score_is_the_mean_ndcg_of_labelled_texts(self, fitted: AttentionXMLClassifier) -> None:
        assert fitted.score(TEXTS, LABELS) > 0.9
        [best, *_] = fitted.top_k(["own3"], 1)[0]
        assert best.label == "label 3"
        assert fitted.score(["own3", "own1"], [["label 3"], []]) == 1
        # The second true label is unknown: one hit at the first rank over the best ranking of two.
        half = 1 / (1 + 1 / np.log2(3))
        assert fitted.score(["own3"], [["label 3", "never seen"]]) == pytest.approx(half)
        with pytest.raises(ValueError, match="y: no text has a label"):
            fitted.score(["own3"], [[]])
        with pytest.raises(ValueError, match="y: expected a list of labels"):
            fitted.score(TEXTS, INDICATOR)

    def test_explains(self, fitted: AttentionXMLClassifier) -> None:
        [[tag]] = fitted.explain(["own3 filler1"], 1)
        assert tag.label == "label 3" and tag.explanation is not None
        assert tag.explanation.words == ("own3", "filler1")
        assert [each.member.kind for each in tag.explanation.contributions] == ["linear_tree"]
        assert tag.explanation.contributions[0].points == pytest.approx(tag.score, rel=1e-4)

    def test_the_threshold_may_change(self, fitted: AttentionXMLClassifier) -> None:
        everything = clone_with_model(fitted).set_params(threshold=0.0).predict(TEXTS[:3])
        assert all(len(row) == CLASSES for row in everything)

    def test_the_cluster_that_was_there_goes_on(self, fitted: AttentionXMLClassifier) -> None:
        assert ray.is_initialized()

    def test_files_go_with_the_estimator(self, fitted: AttentionXMLClassifier) -> None:
        home = fitted.tagger_.bundle.directory.parent
        assert [path.name for path in home.iterdir()] == ["bundle"]
        copy = clone_with_model(fitted)
        other = copy.tagger_.bundle.directory.parent
        assert copy.predict(TEXTS) == fitted.predict(TEXTS) and other != home
        del copy
        gc.collect()
        assert home.exists() and not other.exists()

    def test_saved_and_loaded(self, fitted: AttentionXMLClassifier, tmp_path: Path) -> None:
        fitted.save(tmp_path / "saved")
        (tmp_path / "saved" / "bundle" / "LICENSE").write_text("CC BY 4.0")
        fitted.save(tmp_path / "saved")
        assert (tmp_path / "saved" / "bundle" / "LICENSE").read_text() == "CC BY 4.0"
        loaded = AttentionXMLClassifier.load(tmp_path / "saved")
        assert loaded.get_params() == fitted.get_params()
        assert loaded.predict(TEXTS) == fitted.predict(TEXTS)
        assert (loaded.predict_proba(TEXTS) != fitted.predict_proba(TEXTS)).nnz == 0
        assert names_of(Tagger.load(tmp_path / "saved" / "bundle").tag(TEXTS)) == names_of(fitted.top_k(TEXTS))
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "notes.txt").touch()
        with pytest.raises(SettingsError, match="exists and holds no estimator"):
            fitted.save(tmp_path / "mine")

    def test_a_url_is_no_path(
        self, fitted: AttentionXMLClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SettingsError, match=r"^s3://models/v1: "):
            fitted.save("s3://models/v1")
        with pytest.raises(SettingsError, match=r"^s3://models/v1: "):
            AttentionXMLClassifier.load("s3://models/v1")
        with pytest.raises(SettingsError, match=r"^s3://models/fits: "):
            AttentionXMLClassifier(directory="s3://models/fits").fit(TEXTS, LABELS)
        fitted.save(f"file://{tmp_path}/saved")
        assert AttentionXMLClassifier.load(f"file://{tmp_path}/saved").predict(TEXTS) == fitted.predict(TEXTS)
        assert [path.name for path in tmp_path.iterdir()] == ["saved"]

    def test_in_a_pipeline(self, fitted: AttentionXMLClassifier) -> None:
        pipeline = make_pipeline(FunctionTransformer(lower), fitted)
        assert pipeline.predict([text.upper() for text in TEXTS]) == fitted.predict(TEXTS)


def clone_with_model(fitted: AttentionXMLClassifier) -> AttentionXMLClassifier:
    copy: AttentionXMLClassifier = pickle.loads(pickle.dumps(fitted))
    return copy


def lower(texts: list[str]) -> list[str]:
    return [text.lower() for text in texts]


def test_cross_validation_of_a_pipeline(ray_cluster: None, tmp_path: Path) -> None:
    """With a table of indicators, a cluster that goes on, and files that stay."""
    classifier = AttentionXMLClassifier(trees=1, settings=SETTINGS, directory=tmp_path / "fits")
    pipeline = make_pipeline(FunctionTransformer(lower), classifier)
    names = [f"label {key}" for key in range(CLASSES)]
    table = pd.DataFrame(INDICATOR.toarray(), columns=names)
    result = cross_validate(pipeline, TEXTS, table, cv=2, return_estimator=True, error_score="raise")
    assert (result["test_score"] > 0.8).all()
    homes = sorted((tmp_path / "fits").iterdir())
    assert len(homes) == 2
    assert all({path.name for path in home.iterdir()} == {"bundle", "corpora", "runs", "texts.jsonl"} for home in homes)
    fitted = result["estimator"][0]
    assert fitted.classes_.tolist() == names
    expected = fitted.score(TEXTS, table)
    assert fitted.score(TEXTS, INDICATOR) == fitted.score(TEXTS, table[names[::-1]]) == expected > 0.8
    for wrong in (LABELS, table.rename(columns=str.upper)):
        with pytest.raises(ValueError, match=r"^y: "):
            fitted.score(TEXTS, wrong)
    fitted[-1].save(tmp_path / "saved")
    assert AttentionXMLClassifier.load(tmp_path / "saved").score(TEXTS, table) == expected
    predicted = fitted.predict(TEXTS)
    assert sparse.issparse(predicted) and predicted.shape == INDICATOR.shape and predicted.dtype == np.int64
    assert f1_score(INDICATOR, predicted, average="micro") > 0.8
