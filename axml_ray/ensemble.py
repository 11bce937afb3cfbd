"""The ensemble: members and a combiner.

`Combination` is the part without weights: which members there are, and how their rankings become one. A server keeps it
where requests arrive, and the members wherever there is room. `Ensemble` holds both.

Legend: N documents, n given labels, k best labels, M members.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from axml_ray.combine.combiner import Combiner, MemberWeights
from axml_ray.corpus.text_views import TextViews
from axml_ray.corpus.translation import Translation
from axml_ray.members.member import Member, MemberInfo
from axml_ray.members.text_batch import length_batches, map_batches
from axml_ray.members.topk import TopK
from axml_ray.ragged import Ragged

T = TypeVar("T")


@dataclass(frozen=True)
class Contribution:
    """What one member contributes to a label's score, before the combiner calibrates the sum.

    Attributes:
        member: that scored the label.
        score: 0 to 1; 0 where the label was not among the member's best.
        share: weight of the member among those that answered.
    """

    member: MemberInfo
    score: float
    share: float

    @property
    def points(self) -> float:
        """Share times score: the part of the weighted mean."""
        return self.share * self.score


@dataclass(frozen=True)
class Combination:
    """The members of an ensemble, and how their scores are combined.

    Attributes:
        members: in order.
        combiner: of their scores.
        top_labels: best labels of each member that are combined, and of the ensemble.
    """

    members: tuple[MemberInfo, ...]
    combiner: Combiner
    top_labels: int

    def rank(self, rankings: Mapping[str, TopK]) -> TopK:
        """The ensemble's best labels, from the rankings of its members by name, or of those that are there."""
        present, weighted = self._present(rankings)
        return self.combiner.rank(weighted, [rankings[each.name] for each in present], self.top_labels)

    def score(self, labels: np.ndarray, scores: Mapping[str, np.ndarray]) -> np.ndarray:
        """The ensemble's scores of given labels (integer [n]) from its members', float32 [N, n]."""
        present, weighted = self._present(scores)
        return self.combiner.score(weighted, labels, [scores[each.name] for each in present])

    def contributions(self, labels: np.ndarray, rankings: Mapping[str, TopK]) -> list[list[tuple[Contribution, ...]]]:
        """Each member's contribution to some labels of each document.

        Args:
            labels: integer [N, n].
            rankings: of the members by name.
        """
        present, weighted = self._present(rankings)
        scores = [rankings[each.name].scores_of(labels).tolist() for each in present]
        return [
            [
                tuple(
                    Contribution(member, of_member[row][place], share)
                    for member, of_member, share in zip(present, scores, weighted.shares, strict=True)
                )
                for place in range(labels.shape[1])
            ]
            for row in range(len(labels))
        ]

    def _present(self, of_members: Mapping[str, object]) -> tuple[list[MemberInfo], MemberWeights]:
        """The members that are there; where a tree is away, the others of its kind have its weight."""
        present = [member for member in self.members if member.name in of_members]
        whole: defaultdict[str, float] = defaultdict(float)
        for member in self.members:
            whole[member.kind] += member.weight
        there: defaultdict[str, float] = defaultdict(float)
        for member in present:
            there[member.kind] += member.weight
        weights = [member.weight * whole[member.kind] / there[member.kind] for member in present]
        return present, MemberWeights([each.kind for each in present], weights)


@dataclass(frozen=True)
class Ensemble:
    """Members that predict together.

    Attributes:
        combination: of the members.
        members: by name.
        translation: where the corpus has a dictionary.
    """

    combination: Combination
    members: Mapping[str, Member]
    translation: Translation | None = None

    def rank(self, tokens: Ragged) -> TopK:
        """The best `top_labels` labels of each document.

        Args:
            tokens: word ids, at least one a document.
        """
        return self.combination.rank(self.rank_members(tokens))

    def rank_members(self, tokens: Ragged) -> dict[str, TopK]:
        """Each member's best `top_labels` labels of each document, by the member's name."""
        k = self.combination.top_labels
        found = {name: TopK.empty(len(tokens), k) for name in self.members}
        for rows, of_members in self._in_batches(tokens, lambda member, texts: member.rank(texts, k)):
            for name, ranking in of_members.items():
                for whole, part in zip(found[name], ranking, strict=True):
                    whole[rows] = part
        return found

    def score(self, tokens: Ragged, labels: np.ndarray) -> np.ndarray:
        """Scores of given labels (integer [n]), float32 [N, n], whether or not `rank` would return them."""
        return self.combination.score(labels, self.score_members(tokens, labels))

    def score_members(self, tokens: Ragged, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Each member's scores of given labels, float32 [N, n], by the member's name."""
        found = {name: np.zeros((len(tokens), len(labels)), np.float32) for name in self.members}
        for rows, of_members in self._in_batches(tokens, lambda member, texts: member.score(texts, labels)):
            for name, scores in of_members.items():
                found[name][rows] = scores
        return found

    def _in_batches(
        self, tokens: Ragged, work: Callable[[Member, TextViews], T]
    ) -> "list[tuple[np.ndarray, dict[str, T]]]":
        def on_batch(rows: np.ndarray) -> tuple[np.ndarray, dict[str, T]]:
            # One batch of texts for all members, so that each view of it is computed once.
            texts = TextViews(tokens.take(rows), self.translation)
            return rows, {name: work(member, texts) for name, member in self.members.items()}

        return list(map_batches(on_batch, length_batches(tokens)))
