"""A replica of ensemble members: all of a bundle's, or those of one label tree, or those of none."""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.ensemble import Ensemble
from axml_ray.inference.explain import paths_of
from axml_ray.members.explanation import ExplainedText, TreePath
from axml_ray.members.topk import TopK
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision, SettingsError
from serve_app.edition import Edition, EditionError

EDITIONS = 2
"""Bundles held at a time: while one is rolled out, requests of the one before are still under way."""

T = TypeVar("T")
logger = logging.getLogger("ray.serve")


class Members:
    """Some members of a bundle. A bundle that a call names and that is not open yet is opened then.

    Calls take turns: each uses all of the replica's threads.

    Args:
        names: of the members; None for all that a bundle has.
        threads: of PyTorch.
        precision: of matrix products; by default as the run was trained.
    """

    def __init__(self, names: Sequence[str] | None, threads: int, precision: Precision | None = None):
        use_threads(threads)
        self.names, self.precision = names, precision
        self._turn = threading.Lock()
        self._held: OrderedDict[Edition, tuple[Ensemble, LabelIndex]] = OrderedDict()

    async def reconfigure(self, config: dict[str, str]) -> None:
        """Open a bundle that is rolled out.

        Raises:
            EditionError: it can't be used, and no other is held.
        """
        edition = Edition(**config)
        try:
            await self.ready(edition)
        except EditionError as error:
            if not self._held:
                raise
            logger.error("the bundle stays as it is: %s", error)

    async def ready(self, edition: Edition) -> dict[str, bool]:
        """Open a bundle, if it is not open; true for the name of each member."""
        held = self._held.get(edition)  # without waiting for a turn, since health checks come here
        ensemble, _ = held if held else await self._in_turn(lambda: self._of(edition))
        return dict.fromkeys(ensemble.members, True)

    async def rank(self, edition: Edition, tokens: Ragged) -> dict[str, TopK]:
        """Each member's best labels of some documents: `Ensemble.rank_members`."""
        return await self._in_turn(lambda: self._of(edition)[0].rank_members(tokens))

    async def score(self, edition: Edition, tokens: Ragged, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Each member's scores of given labels: `Ensemble.score_members`."""
        return await self._in_turn(lambda: self._of(edition)[0].score_members(tokens, labels))

    async def explain(
        self, edition: Edition, words: np.ndarray, real: int, labels: Sequence[int]
    ) -> dict[str, list[TreePath] | None]:
        """The paths to some labels of one text, of each member that attends to words; None for the others."""

        def work() -> dict[str, list[TreePath] | None]:
            ensemble, index = self._of(edition)
            text = ExplainedText.of(words, real, ensemble.translation)
            paths = paths_of(ensemble.members, text, labels, index)
            return {name: paths.get(name) for name in ensemble.members}

        return await self._in_turn(work)

    def _of(self, edition: Edition) -> tuple[Ensemble, LabelIndex]:
        if edition not in self._held:
            self._held[edition] = self._opened(edition)
            while len(self._held) > EDITIONS:
                self._held.popitem(last=False)
        self._held.move_to_end(edition)  # the one not asked for the longest goes first
        return self._held[edition]

    def _opened(self, edition: Edition) -> tuple[Ensemble, LabelIndex]:
        try:
            bundle = edition.open()
            return bundle.ensemble(self.precision, names=self.names), bundle.labels
        except SettingsError as error:
            raise EditionError(str(error)) from None

    async def _in_turn(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._turn:
                return work()

        return await asyncio.to_thread(alone)
