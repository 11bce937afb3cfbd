"""The ensemble: members and a combiner.

`Combination` is the part without models, which a server keeps in the process that receives requests; it can run the
members elsewhere. `Ensemble` has both parts.

Legend: N documents, n given labels, k best labels, M members.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.ensemble.combiner import Combiner, MemberWeights
from axml_ray.members.member import Member, MemberInfo
from axml_ray.members.text_batch import length_batches, map_in_threads

T = TypeVar("T")


@dataclass(frozen=True)
class Contribution:
    """The contribution of one member to a label's score, before the combiner calibrates the sum.

    Attributes:
        member: the member.
        score: its score of the label, 0 to 1; 0 if the label was not among its best.
        share: weight of the member relative to all members that returned a ranking.
    """

    member: MemberInfo
    score: float
    share: float

    @property
    def points(self) -> float:
        """Return share times score: the summand of the weighted mean."""
        return self.share * self.score


@dataclass(frozen=True)
class Combination:
    """The members of an ensemble, in order, the combiner of their scores, and how many labels each ranks."""

    members: tuple[MemberInfo, ...]
    combiner: Combiner
    top_labels: int

    @property
    def shares(self) -> dict[str, float]:
        """Return the weight of each member in the ensemble's scores, by name; they add up to 1."""
        weights = MemberWeights([each.kind for each in self.members], [each.weight for each in self.members])
        shares = self.combiner.reweighted(weights).shares
        return {each.name: share for each, share in zip(self.members, shares, strict=True)}

    def rank(self, rankings: Mapping[str, TopK], allowed: np.ndarray | None = None) -> TopK:
        """Return the ensemble's best labels.

        Args:
            rankings: rankings of the members, or of some of them, by name.
            allowed: whether each label is allowed, bool [L]; None allows all labels.
        """
        present, weighted = self._present(rankings)
        chosen = [rankings[each.name] if allowed is None else rankings[each.name].among(allowed) for each in present]
        return self.combiner.rank(weighted, chosen, self.top_labels)

    def score(self, labels: np.ndarray, scores: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the ensemble's scores of given labels (integer [n]), float32 [N, n], from its members' by name."""
        present, weighted = self._present(scores)
        return self.combiner.score(weighted, labels, [scores[each.name] for each in present])

    def contributions(self, labels: np.ndarray, rankings: Mapping[str, TopK]) -> list[list[tuple[Contribution, ...]]]:
        """Return each member's contribution to the scores of some labels of each document (integer [N, n])."""
        present, weighted = self._present(rankings)
        scores = [rankings[each.name].scores_of(labels).tolist() for each in present]
        shares = self.combiner.reweighted(weighted).shares
        return [
            [
                tuple(
                    Contribution(member, of_member[row][place], share)
                    for member, of_member, share in zip(present, scores, shares, strict=True)
                )
                for place in range(labels.shape[1])
            ]
            for row in range(len(labels))
        ]

    def _present(self, of_members: Mapping[str, object]) -> tuple[list[MemberInfo], MemberWeights]:
        """Return the members that have a value; the weight of a missing tree goes to the others of its kind."""
        present = [member for member in self.members if member.name in of_members]
        total_weight: defaultdict[str, float] = defaultdict(float)
        for member in self.members:
            total_weight[member.kind] += member.weight
        present_weight: defaultdict[str, float] = defaultdict(float)
        for member in present:
            present_weight[member.kind] += member.weight
        weights = [each.weight * total_weight[each.kind] / present_weight[each.kind] for each in present]
        return present, MemberWeights([each.kind for each in present], weights)


@dataclass(frozen=True)
class Ensemble:
    """The fitted members, by name, and their combiner."""

    combination: Combination
    members: Mapping[str, Member]

    def rank(self, tokens: Ragged, allowed: np.ndarray | None = None) -> TopK:
        """Return the best `top_labels` labels of each document, of at least one word; see `Combination.rank`."""
        return self.combination.rank(self.rank_members(tokens), allowed)

    def rank_members(self, tokens: Ragged) -> dict[str, TopK]:
        """Return each member's best `top_labels` labels of each document, by the member's name."""
        k = self.combination.top_labels
        rankings = {name: TopK.empty(len(tokens), k) for name in self.members}
        for rows, of_members in self._in_batches(tokens, lambda member, texts: member.rank(texts, k)):
            for name, of_batch in of_members.items():
                for array, part in zip(rankings[name], of_batch, strict=True):
                    array[rows] = part
        return rankings

    def score(self, tokens: Ragged, labels: np.ndarray) -> np.ndarray:
        """Return the scores of given labels (integer [n]), float32 [N, n], whether or not `rank` would return them."""
        return self.combination.score(labels, self.score_members(tokens, labels))

    def score_members(self, tokens: Ragged, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return each member's scores of given labels, float32 [N, n], by the member's name."""
        scores = {name: np.zeros((len(tokens), len(labels)), np.float32) for name in self.members}
        for rows, of_members in self._in_batches(tokens, lambda member, texts: member.score(texts, labels)):
            for name, of_batch in of_members.items():
                scores[name][rows] = of_batch
        return scores

    def _in_batches(
        self, tokens: Ragged, work: Callable[[Member, TextViews], T]
    ) -> Iterator[tuple[np.ndarray, dict[str, T]]]:
        """Yield the row numbers of each batch of texts, and the result of `work` by the name of the member."""
        on_accelerator = any(member.on_accelerator for member in self.members.values())
        batches = list(length_batches(tokens, on_accelerator=on_accelerator))

        def tasks() -> Iterator[tuple[Member, TextViews]]:
            for rows in batches:
                # One batch of texts for all members, so that each view of it is computed once.
                texts = TextViews(tokens.take(rows))
                for member in self.members.values():
                    yield member, texts

        results = map_in_threads(lambda task: work(*task), tasks())
        for rows in batches:
            yield rows, {name: next(results) for name in self.members}
