"""The base class of members that score only a few labels of each text, and so keep their scores in a sparse matrix."""

from abc import abstractmethod

import numpy as np
from scipy import sparse

from axml_ray.core.topk import TopK, best_of_sparse
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.member import Member


class SparseMember(Member):
    """A member whose `rank` and `score` both read one sparse matrix of scores, computed once per batch of texts."""

    @abstractmethod
    def scores_of(self, texts: TextViews) -> sparse.csr_matrix:
        """Return the positive scores of each text's labels, float32 CSR [N, L]; labels that are left out score 0."""

    def rank(self, texts: TextViews, k: int) -> TopK:
        """Return the best k labels of each text, [N, k]; fewer where fewer labels have a positive score."""
        return best_of_sparse(self._cached_scores(texts), k)

    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        """Return the scores of given labels (integer [n]), float32 [N, n]."""
        scores: np.ndarray = self._cached_scores(texts)[:, labels].toarray()
        return scores

    def _cached_scores(self, texts: TextViews) -> sparse.csr_matrix:
        return texts.get_or_compute(("scores", id(self)), lambda: self.scores_of(texts))
