"""Explanations of predicted labels: each member's contribution to the score, and the attention to each word.

The attention weights of a node over a text's words (paper, equation 2) sum to one. Prediction does not keep them; they
are computed again for the texts and labels that are explained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.ensemble.ensemble import Contribution
from axml_ray.members.explanation import ExplainedText, TreePath
from axml_ray.members.member import Member, MemberInfo


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The explanation of a label of a text."""

    text: str
    """The text, with blanks in place of characters that cannot be stored."""
    label: str
    """The label as in the corpus."""
    name: str
    """Its name for display."""
    spans: tuple[tuple[int, int], ...]
    """Start and end offset (code points) of each word that was read; longer texts are cut."""
    contributions: tuple[Contribution, ...]
    """Contributions of the members that answered; their points sum to the weighted mean, which the combiner may
    calibrate."""
    paths: Mapping[MemberInfo, TreePath]
    """Path from the top of the tree to the label, for each member with attention."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words that were read."""
        return tuple(self.text[start:end] for start, end in self.spans)

    @cached_property
    def weights(self) -> np.ndarray:
        """Attention of the label to each word, the mean over members, float32 [words]; sums to one or is all zero."""
        if not self.paths:
            return np.zeros(len(self.spans), dtype=np.float32)
        return np.stack([path[-1].weights for path in self.paths.values()]).mean(axis=0)

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain values for JSON."""
        return {
            "label": self.label,
            "name": self.name,
            "words": [
                {"word": word, "start": start, "end": end, "weight": float(weight)}
                for word, (start, end), weight in zip(self.words, self.spans, self.weights, strict=True)
            ],
            "contributions": [
                {
                    "member": contribution.member.title,
                    "score": contribution.score,
                    "share": contribution.share,
                    "points": contribution.points,
                }
                for contribution in self.contributions
            ],
            "paths": [
                {
                    "member": member.title,
                    "path": [
                        {name: getattr(step, name) for name in ("level", "name", "probability")}
                        | {"weights": step.weights.tolist()}
                        for step in path
                    ],
                }
                for member, path in self.paths.items()
            ],
        }


def paths_of(
    members: Mapping[str, Member], text: ExplainedText, labels: Sequence[int], index: LabelIndex
) -> dict[str, list[TreePath]]:
    """Return the tree paths to some labels, by the name of each member with attention."""
    explanations = {name: member.explain(text, labels, index) for name, member in members.items()}
    return {name: paths for name, paths in explanations.items() if paths is not None}


def assemble(
    text: str,
    spans: Sequence[tuple[int, int]],
    labels: Sequence[int],
    index: LabelIndex,
    members: Sequence[MemberInfo],
    contributions: Sequence[tuple[Contribution, ...]],
    paths: Mapping[str, Sequence[TreePath]],
) -> list[Explanation]:
    """Assemble explanations of a text's labels from the results of members, which may be in other processes.

    Args:
        text: the text.
        spans: the offsets of its words from `Tokenizer.encode_with_spans`.
        labels: ids of the labels.
        index: the labels of the corpus, with their names.
        members: members of the ensemble, in order.
        contributions: contributions to each label.
        paths: tree paths to each label, by member with attention.
    """
    if not spans:  # a text without a word: every label has score 0, whatever members make of the unknown word
        contributions = [
            tuple(replace(contribution, score=0.0) for contribution in of_label) for of_label in contributions
        ]
    return [
        Explanation(
            text=text,
            label=index.labels[label],
            name=index.names[label],
            spans=tuple(spans),
            contributions=contributions[place],
            paths={member: paths[member.name][place] for member in members if member.name in paths},
        )
        for place, label in enumerate(labels)
    ]
