"""A scikit-learn classifier of texts: the main job, the export of a bundle and a tagger, behind `fit` and `predict`.

classifier = AttentionXMLClassifier().fit(texts, labels)
[tags] = classifier.top_k(["A text about sparse matrices."], 3)

Legend: N texts, C classes.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import orjson
from pydantic import Field, ValidationError
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from axml_ray.cluster.connection import stop_cluster
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import finish_replacement, read_json, whole_directory, whole_file, write_json
from axml_ray.core.lease import own
from axml_ray.core.paths import absolute, is_url, paths_below, url_of
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.records.in_memory import (
    LabelledText,
    check_not_one_hot,
    column_names,
    column_of,
    label_of,
    labelled_texts,
    read_labels,
)
from axml_ray.corpus.text.composition import composed
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.inference.bundle.export import export_bundle, keep_files_of_others
from axml_ray.inference.tagger import Tag, Tagger
from axml_ray.settings import Experiment, Settings, fingerprint, stored
from axml_ray.settings.configuration import load
from axml_ray.tracking.tracked_run import track
from axml_ray.workflow.train import begin, train

ABOUT, BUNDLE, TEXTS = "estimator.json", "bundle", "texts.jsonl"
SCORED = 5
"""Number of best labels that `score` looks at."""


class SavedEstimator(Settings):
    """The content of `estimator.json`, which `AttentionXMLClassifier.save` writes next to the bundle."""

    format: Literal["axml-ray estimator"] = "axml-ray estimator"
    version: Literal[1] = 1
    parameters: dict[str, Any]
    """Parameters of the constructor."""
    classes: Annotated[list[int] | list[str], Field(min_length=1)]
    """Names of the classes; the numbers of columns for an indicator matrix without names."""
    is_indicator: bool
    """Whether labels were given as an indicator matrix."""


def _local(directory: str | Path) -> Path:
    """Return an absolute path, which starts at the current directory.

    Raises:
        SettingsError: it is a URL of an object store.
    """
    if not is_url(directory):
        return Path(directory).absolute()
    path = absolute(directory)
    if url := url_of(path):
        raise SettingsError(f"{url}: an estimator's files are in a local directory; copy that to the store")
    return path


class AttentionXMLClassifier(ClassifierMixin, BaseEstimator):
    """AttentionXML as a scikit-learn classifier that gives a text any number of labels.

    `X` is a column of texts: a list, a NumPy, pandas or pyarrow column, or a column of a Hugging Face `Dataset`. `y` is
    a list of labels for each text, or one label for each; or an indicator matrix [N, C] of zeros and ones: sparse, an
    array, or a table, whose columns are the classes. `predict` returns an indicator matrix if `fit` got one, else lists
    of labels.

    `fit` runs the main job on the Ray cluster that is initialised, else on one that it starts and stops. A tenth of the
    texts, at most `corpus.valid_documents`, are held out for validation; texts without labels are left out.

    Args:
        trees: number of label trees; by default the preset's: three, by `auto` one for fewer than 1,000 texts.
        preset: values of all other settings: auto, recommended or paper.
        settings: settings that differ from the preset, in groups as in a config file: `{"training": {"epochs": [2]}}`.
        classes: names of an indicator matrix's columns; by default those of the table, or their numbers.
        threshold: least probability of the labels that `predict` returns.
        random_state: seed of the trees and networks.
        directory: where the files of fits stay: each has a directory of its own, by its texts and settings, and goes on
            there after a stop. By default files are temporary, and removed with the estimator. If Ray runs on several
            machines, all must see it.

    Attributes:
        classes_: names of the C classes, object [C]; or int [C] for an indicator matrix without names.
        tagger_: the fitted model.
        is_indicator_: whether labels were given as an indicator matrix.
    """

    def __init__(
        self,
        trees: int | None = None,
        preset: str = "auto",
        *,
        settings: dict[str, Any] | None = None,
        classes: Sequence[str] | None = None,
        threshold: float = 0.5,
        random_state: int = 0,
        directory: str | Path | None = None,
    ):
        self.trees, self.preset, self.settings, self.classes = trees, preset, settings, classes
        self.threshold, self.random_state, self.directory = threshold, random_state, directory

    def fit(self, X: Any, y: Any) -> Self:
        """Train on texts and their labels.

        Raises:
            TypeError, ValueError: a text is no string, labels are in no accepted form, or a setting is wrong; the
                message names the row or the setting.
            RuntimeError: the training failed.
        """
        texts = column_of(X, "X")
        names, classes = read_labels(y, self.classes)
        is_indicator = classes is not None
        if not is_indicator:
            check_not_one_hot(names)
            if self.classes is not None:
                raise ValueError("classes: names the columns of an indicator matrix, but y has the labels themselves")
        records = labelled_texts(texts, names)
        if classes is None:
            classes = np.array(sorted({label for _, labels in records for label in labels}), dtype=object)
        home = self._new_directory(records)
        remove = weakref.finalize(self, shutil.rmtree, home, ignore_errors=True) if self.directory is None else None
        try:
            self._train(home, records)
        except BaseException:
            if remove is not None:
                remove()
            raise
        self.classes_, self.is_indicator_ = classes, is_indicator
        self._open(home / BUNDLE, remove)
        return self

    def predict(self, X: Any) -> list[list[str]] | sparse.csr_matrix:
        """Return the labels with a probability of at least `threshold`: a list for each text, or int64 CSR [N, C]."""
        rows = self._tag(X, threshold=self.threshold)
        if self.is_indicator_:
            return self._matrix(rows, lambda tag: 1, np.int64)
        return [[tag.label for tag in row] for row in rows]

    def predict_proba(self, X: Any) -> sparse.csr_matrix:
        """Return the probabilities of the `ensemble.top_labels` best labels of each text, float32 CSR [N, C].

        The other labels, which are less probable, are not stored.
        """
        return self._matrix(self._tag(X), lambda tag: tag.probability, np.float32)

    def top_k(self, X: Any, k: int = 5) -> list[list[Tag]]:
        """Return the best k labels of each text, best first."""
        return self._tag(X, top_k=k)

    def explain(self, X: Any, k: int = 5) -> list[list[Tag]]:
        """Return the best k labels of each text with explanations, as `Tagger.tag` does."""
        return self._tag(X, top_k=k, explain=True)

    def score(self, X: Any, y: Any) -> float:
        """Return the mean nDCG@5, 0 to 1, of the texts with a label; labels that `fit` did not get count as misses.

        Raises:
            TypeError, ValueError: as in `fit`; or no text has a label, or `y` has another form than in `fit`.
        """
        check_is_fitted(self)
        is_named = self.classes is None and column_names(y) is not None
        names, classes = read_labels(y, self.classes_ if self.is_indicator_ and not is_named else None)
        if (classes is not None) != self.is_indicator_:
            expected = "an indicator matrix" if self.is_indicator_ else "a list of labels for each text"
            raise ValueError(f"y: expected {expected}, as in fit")
        if classes is not None and self._columns.keys().isdisjoint(map(label_of, classes.tolist())):
            raise ValueError("y: none of its columns is a class that fit got")
        records = labelled_texts(column_of(X, "X"), names)
        columns = dict(self._columns)
        truth = Ragged.from_rows([[columns.setdefault(label, len(columns)) for label in row] for _, row in records])
        rows = self._tag([text for text, _ in records], top_k=SCORED)
        top = np.full((len(rows), SCORED), -1, np.int32)
        for ranked, row in zip(top, rows, strict=True):
            ranked[: len(row)] = [columns[composed(tag.label)] for tag in row]
        is_labelled = truth.lengths > 0
        if not is_labelled.any():
            raise ValueError("y: no text has a label, so there is nothing to score")
        return float(ndcg_at(top, truth.values, truth.offsets, SCORED)[is_labelled].mean())

    def save(self, directory: str | Path) -> None:
        """Write the fitted estimator to a directory: its bundle, which jobs and servers can use, and `estimator.json`.

        Raises:
            SettingsError: the directory has other content, or is a URL of an object store.
        """
        check_is_fitted(self)
        directory = _local(directory)
        known = {ABOUT, BUNDLE} if (directory / ABOUT).is_file() else set()
        if directory.exists() and (not directory.is_dir() or {path.name for path in directory.iterdir()} - known):
            raise SettingsError(f"{directory}: exists and holds no estimator; choose a directory that doesn't exist")
        saved = SavedEstimator(
            parameters=self.get_params(), classes=self.classes_.tolist(), is_indicator=self.is_indicator_
        )
        with whole_directory(directory) as work:
            shutil.copytree(self.tagger_.bundle.directory, work / BUNDLE)
            keep_files_of_others(directory / BUNDLE, work / BUNDLE)
            write_json(work / ABOUT, saved.model_dump(mode="json", fallback=_plain))

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Open an estimator that `save` wrote; its directory must stay.

        Raises:
            SettingsError: there is no estimator, or it is damaged or has another version.
        """
        path = _local(directory) / ABOUT
        finish_replacement(path.parent)
        try:
            saved = SavedEstimator.model_validate(read_json(path))
            estimator = cls(**saved.parameters)
        except (OSError, TypeError, ValueError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise SettingsError(f"{path}: not an estimator that `save` wrote ({reason}); save it again") from None
        names = saved.classes
        estimator.classes_ = np.array(names, dtype=np.int64 if isinstance(names[0], int) else object)
        estimator.is_indicator_ = saved.is_indicator
        estimator._open(path.with_name(BUNDLE), None)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.classifier_tags.multi_label, tags.classifier_tags.multi_class = True, False
        tags.no_validation = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the bytes of the bundle's files in place of the opened bundle."""
        state = dict(super().__getstate__())
        state.pop("_remove", None)
        tagger = state.pop("tagger_", None)
        if tagger is not None:
            root = tagger.bundle.directory
            paths = sorted(path for path in root.rglob("*") if path.is_file())
            state["_bundle"] = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Write the bundle's files into a temporary directory, which is removed with the estimator, and open it."""
        files = state.pop("_bundle", None)
        super().__setstate__(state)
        if files is None:
            return
        home = Path(tempfile.mkdtemp(prefix="axml-ray-estimator-"))
        remove = weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        for name, content in files.items():
            path = home / BUNDLE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._open(home / BUNDLE, remove)

    def _new_directory(self, records: list[LabelledText]) -> Path:
        """Return the directory of a fit: a temporary one, or one below `directory` that is the same for equal fits."""
        if self.directory is None:
            return Path(tempfile.mkdtemp(prefix="axml-ray-estimator-"))
        parent = _local(self.directory)
        experiment = self._experiment(parent)
        with paths_below(parent):  # which may be moved
            settings = stored(experiment, exclude={"tracking"})
        # `auto` chooses what is not given.
        given_keys = sorted(experiment.given) if experiment.preset == "auto" else []
        return parent / fingerprint(settings, given_keys, records)

    def _experiment(self, home: Path) -> Experiment:
        """Return the settings of the main job, whose files are below a directory."""
        own = {
            "preset": self.preset,
            "seed": self.random_state,
            "ensemble.trees": self.trees,
            "name": "run",
            "runs": home / "runs",
            "corpora": home / "corpora",
            "corpus.name": "texts",
            "corpus.source": "json_lines",
            "corpus.train": [home / TEXTS],
            "corpus.test": (),
            "corpus.test_share": 0.0,
        }
        values: dict[str, Any] = dict(self.settings or {})
        for key, value in own.items():
            path, _, name = key.rpartition(".")
            group = values
            if path:
                group = values[path] = dict(values.get(path) or {})
            if name in group:
                raise SettingsError(
                    f"settings: {key} is set by the estimator itself; remove it (its parameters are trees, preset, "
                    "random_state and directory)"
                )
            if value is not None:
                group[name] = value
        return load(None, **values)

    def _train(self, home: Path, records: list[LabelledText]) -> None:
        """Run the main job up to the bundle; of temporary files only the bundle is kept."""
        import ray

        settings = self._experiment(home)
        home.mkdir(parents=True, exist_ok=True)
        if not (home / TEXTS).exists():  # an interrupted fit goes on only if its input is unchanged
            with whole_file(home / TEXTS) as temporary, temporary.open("wb") as file:
                file.writelines(orjson.dumps({"text": text, "labels": row}) + b"\n" for text, row in records)
        starts_cluster = not ray.is_initialized()
        try:
            with own(settings.run_directory):
                current = begin(settings)
                with track(current.settings) as tracked:
                    train(current, record=tracked.record)
                    export_bundle(current, home / BUNDLE)
        finally:
            if starts_cluster:
                stop_cluster()
        if self.directory is None:
            for path in (settings.runs, settings.corpora):
                shutil.rmtree(path)
            (home / TEXTS).unlink()

    def _open(self, bundle: Path, remove: Callable[[], object] | None) -> None:
        """Open the tagger of a bundle, whose temporary directory `remove` removes; remove that of an earlier fit."""
        self.tagger_ = Tagger.load(bundle)
        self._columns = {label_of(name): column for column, name in enumerate(self.classes_.tolist())}
        before, self._remove = getattr(self, "_remove", None), remove
        if before is not None:
            before()

    def _tag(self, X: Any, **options: Any) -> list[list[Tag]]:
        check_is_fitted(self)
        options.setdefault("top_k", self.tagger_.bundle.settings.top_labels)
        return self.tagger_.tag(column_of(X, "X"), **options)

    def _matrix(self, rows: list[list[Tag]], value: Callable[[Tag], float], kind: type) -> sparse.csr_matrix:
        """Return one value of each tag as CSR [N, C], columns in the order of `classes_`."""
        offsets = np.cumsum([0, *map(len, rows)])
        columns = [self._columns[composed(tag.label)] for row in rows for tag in row]
        values: np.ndarray = np.array([value(tag) for row in rows for tag in row], dtype=kind)
        matrix = sparse.csr_matrix((values, columns, offsets), shape=(len(rows), len(self.classes_)))
        matrix.sort_indices()
        return matrix


def _plain(value: Any) -> Any:
    """Return a NumPy value as JSON can store it, and any other object as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
