"""The Python interface of a bundle: it assigns labels to texts.

tagger = Tagger.load("bundle")
for tag in tagger.tag(["A text about sparse matrices."])[0]:
    print(tag.name, tag.probability)
"""

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from axml_ray.core.errors import SettingsError
from axml_ray.core.limits import available_cpus
from axml_ray.core.memory import release_freed_memory
from axml_ray.core.paths import is_url
from axml_ray.core.topk import TopK, rank_given
from axml_ray.corpus.records.in_memory import column_of
from axml_ray.corpus.records.records import storable
from axml_ray.inference.bundle import hub
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import LABELS, TOKENIZER, check_checksums
from axml_ray.inference.explain.codec import Codec, Tag
from axml_ray.inference.explain.conditions import AllowedLabels
from axml_ray.inference.explain.explain import assemble, paths_of
from axml_ray.members.explanation import ExplainedText
from axml_ray.network.backends.devices import device_named
from axml_ray.network.backends.precision import use_threads
from axml_ray.settings import LabelConditions, Precision

__all__ = ["Tag", "Tagger"]

TEXTS = 4_096
"""Number of texts that are processed at a time."""


class Tagger:
    """Assigns labels to texts. Threads may share a tagger; calls are processed one at a time, as each uses all cores.

    Example:
        >>> tagger = Tagger.load("bundle")
        >>> [[first, *_], *_] = tagger.tag(["solve a sparse linear system", "read a table from a file"], top_k=3)
        >>> 0 <= first.probability <= 1 and first.label in tagger.labels
        True
        >>> sure = tagger.tag(["solve a sparse linear system"], top_k=3, threshold=tagger.threshold(count=2))
        >>> len(sure[0]) <= 3
        True

    Args:
        bundle: the opened bundle.
        precision: number format of matrix products; by default that of the training.
        device: of the networks: cpu, cuda or cuda:N.

    Raises:
        TypeError: `bundle` is a path.
        SettingsError: there is no such device or number format.
    """

    def __init__(self, bundle: Bundle, precision: Precision | None = None, device: str = "cpu"):
        if not isinstance(bundle, Bundle):
            raise TypeError(f"Tagger takes an opened bundle; to open a directory, call Tagger.load({bundle!r})")
        if precision not in (None, *(formats := get_args(Precision))):
            raise SettingsError(f"precision: there is no {precision!r}; choose one of {', '.join(formats)}")
        self.bundle = bundle
        self.ensemble = bundle.ensemble(precision, device_named(device))
        self.codec = Codec(bundle)
        release_freed_memory()
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        path: str | Path | Bundle,
        *,
        precision: Precision | None = None,
        threads: int | None = None,
        verify: bool = True,
        device: str = "cpu",
    ) -> "Tagger":
        """Open a bundle that `axml-ray export` wrote.

        Args:
            path: directory or URL of the bundle, or the opened bundle.
            precision: number format of matrix products; by default that of the training.
            threads: number of PyTorch threads; by default unchanged, but at most the CPUs of this process.
            verify: whether to verify all checksums; unnecessary if another process on this machine already has.
            device: of the networks: cpu, cuda or cuda:N.

        Raises:
            BundleError: there is no bundle, or it is incomplete, was changed, or has another version.
        """
        # By itself PyTorch takes all CPUs that the process may run on, also where a container limits their time.
        use_threads(threads or min(torch.get_num_threads(), available_cpus()))
        if isinstance(path, Bundle):
            return cls(path, precision, device)
        bundle = Bundle.open(path, verify=False)
        if verify:
            # The checksum of the largest file takes one core, while another reads what was verified before.
            small = {LABELS, TOKENIZER}
            check_checksums(bundle.directory, bundle.manifest, small)
            with ThreadPoolExecutor(1) as thread:
                large = bundle.manifest.files.keys() - small
                verified = thread.submit(check_checksums, bundle.directory, bundle.manifest, large)
                _ = bundle.labels, bundle.tokenizer
                verified.result()
        return cls(bundle, precision, device)

    @classmethod
    def from_pretrained(
        cls,
        repo_id_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        precision: Precision | None = None,
        threads: int | None = None,
        device: str = "cpu",
    ) -> "Tagger":
        """Open a bundle of the Hugging Face Hub, or a directory. All checksums are verified.

        Args:
            repo_id_or_path: `owner/name` on the Hub; a directory of this name comes first. Or a URL of a bundle.
            revision: branch, tag or commit; by default the main branch.
            token: access token of the Hub; by default that of the environment or of `hf auth login`.
            precision: as for `load`.
            threads: as for `load`.
            device: as for `load`.

        Raises:
            SettingsError: `huggingface_hub` is not installed, or the Hub has no such repository or revision, or cannot
                be reached; or there is no such device.
            BundleError: as for `load`.
        """
        is_directory = isinstance(repo_id_or_path, Path) or is_url(repo_id_or_path) or Path(repo_id_or_path).is_dir()
        bundle = repo_id_or_path if is_directory else hub.download(str(repo_id_or_path), revision=revision, token=token)
        return cls.load(bundle, precision=precision, threads=threads, device=device)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str | None = None,
    ) -> str:
        """Publish the bundle, with its model card, on the Hugging Face Hub.

        Files of an earlier bundle in the repository are replaced, in one commit. With the member `knn` a bundle
        contains the words of the training texts: do not publish it if they are not public.

        Args:
            repo_id: `owner/name`; the repository is made if it does not exist.
            private: whether a new repository is private; by default as the owner's settings say.
            token: access token of the Hub; by default that of the environment or of `hf auth login`.
            commit_message: message of the commit, whose URL is returned.

        Raises:
            SettingsError: `huggingface_hub` is not installed, or the Hub refuses, or cannot be reached.
            BundleError: a file has changed since the bundle was exported.
        """
        return hub.publish(self.bundle, repo_id, private=private, token=token, commit_message=commit_message)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """All labels, by falling frequency in training; of a continued run, those of the old run first."""
        return tuple(self.codec.index.labels)

    def tag(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        explain: bool = False,
        threshold: float | None = None,
        labels: Sequence[str] | None = None,
        conditions: LabelConditions | None = None,
    ) -> list[list[Tag]]:
        """Return the best labels of each text, best first. A text without a word, such as an empty one, has none.

        Args:
            texts: texts of any length, in a list or another column, as of NumPy, pandas or pyarrow; words beyond the
                limit of the training are ignored.
            top_k: largest number of labels of a text; the run's `ensemble.top_labels` is another limit.
            explain: also return each member's contribution and the words that each label attends to. Takes about the
                time of another text for each text.
            threshold: omit labels with a lower probability, 0 to 1; see `threshold`.
            labels: score these labels only, and return all of them regardless of `top_k`. Labels that beam search would
                have pruned have a score here, too. For a text without a word all scores are 0.
            conditions: which labels are allowed or excluded. Up to 1,000 allowed labels are scored one by one;
                otherwise only the members' `ensemble.top_labels` best labels are looked at, which may leave fewer than
                `top_k`.

        Raises:
            TypeError, ValueError: texts or labels are not columns of strings, or `conditions` are something else.
            SettingsError: a label or prefix is unknown, `top_k` or `threshold` is out of range, or both `labels` and
                `conditions` are given.
        """
        texts = _strings("texts", texts)
        if not isinstance(top_k, Integral) or top_k < 1:
            raise SettingsError(f"top_k: expected a whole number above 0 (given: {top_k!r})")
        if threshold is not None and not (isinstance(threshold, Real) and 0 <= threshold <= 1):
            raise SettingsError(f"threshold: expected a probability, 0 to 1 (given: {threshold!r})")
        label_ids = allowed = None
        if labels is not None:
            label_ids = self.codec.ids(_strings("labels", labels))
        if conditions is not None:
            if labels is not None:
                raise SettingsError("conditions: labels= names the only labels to score; give one of them")
            if not isinstance(conditions, LabelConditions):
                raise TypeError(f"conditions: expected LabelConditions(…), found {type(conditions).__name__}")
            allowed = AllowedLabels.of(conditions, self.codec)
        scored = label_ids if allowed is None else allowed.scored  # the labels that are scored one by one, if any
        shown = None if labels is not None else min(top_k, self.bundle.settings.top_labels)
        results: list[list[Tag]] = []
        for start in range(0, len(texts), TEXTS):
            batch = [storable(text) for text in texts[start : start + TEXTS]]
            tokens = self.codec.encode(batch)
            with self._lock:
                if scored is None:
                    best = self.ensemble.rank(tokens, None if allowed is None else allowed.mask)
                else:
                    best = rank_given(scored, self.ensemble.score(tokens, scored))
            best = TopK(best.labels[:, :shown], best.scores[:, :shown])
            best = self.codec.mask(best, self.codec.has_words(batch), label_ids)
            rows = self.codec.decode(best, threshold)
            if explain:
                ids, is_given = best.labels.tolist(), scored is not None
                rows = [self._explain(*row, is_given) for row in zip(batch, ids, rows, strict=True)]
            results += rows
        return results

    def threshold(self, *, precision: float | None = None, count: float | None = None) -> float:
        """Return the lowest threshold for `tag` with a given precision, or mean number of labels, on validation.

        Args:
            precision: required share of correct labels among all labels returned, 0 to 1, such as 0.8. The least
                probable of them are correct less often, so the threshold is usually lower than this.
            count: mean number of labels of a text.

        Raises:
            SettingsError: not exactly one of the two is given, or validation never reached it.
        """
        return self.codec.calibration.threshold(precision=precision, count=count)

    def _explain(self, text: str, ids: list[int], tags: list[Tag], given: bool) -> list[Tag]:
        """Return a text's tags with explanations; if the labels were given, each member scores all of them.

        `ids` are those of the ranking. A threshold removes the last labels only, so the first are those of the tags.
        """
        codec, ensemble, ids = self.codec, self.ensemble, ids[: len(tags)]
        token_ids, spans = codec.tokenizer.encode_with_spans(text, codec.max_tokens)
        read, labels = ExplainedText(token_ids, len(spans)), np.array([ids], dtype=np.int32)
        with self._lock:
            if given:
                scores = ensemble.score_members(read.tokens, labels[0])
                rankings = {name: TopK(labels, of_member) for name, of_member in scores.items()}
            else:
                rankings = ensemble.rank_members(read.tokens)
            [contributions] = ensemble.combination.contributions(labels, rankings)
            paths = paths_of(ensemble.members, read, ids, codec.index)
        explanations = assemble(text, spans, ids, codec.index, ensemble.combination.members, contributions, paths)
        return [replace(tag, explanation=reasons) for tag, reasons in zip(tags, explanations, strict=True)]


def _strings(name: str, values: Any) -> list[str]:
    """Return an argument as a list of strings; a single string, or a table of several columns, is a common mistake."""
    strings = column_of(values, name)
    if not all(isinstance(value, str) for value in strings):
        raise TypeError(f"{name}: expected a list of strings, as in tag(['one text', 'another'])")
    return strings
