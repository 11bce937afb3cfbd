"""A replica of trees: all of an ensemble, or one."""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.inference.combining import Ballot
from axml_ray.inference.ensemble import Ensemble
from axml_ray.inference.explain import Step, paths
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision, SettingsError
from serve_app.edition import Edition, EditionError

EDITIONS = 2
"""Bundles held at a time: while one is rolled out, requests of the one before are still under way."""

T = TypeVar("T")
logger = logging.getLogger("ray.serve")


class Trees:
    """Some trees of a bundle. A bundle that a call names and that isn't held yet is opened then.

    Calls take turns: each uses all of the replica's threads.

    Args:
        numbers: of the trees, from 0; None for all that a bundle has.
        threads: of PyTorch.
        precision: of matrix products; by default as the run was trained.
    """

    def __init__(self, numbers: Sequence[int] | None, threads: int, precision: Precision | None = None):
        use_threads(threads)
        self.numbers, self.precision = numbers, precision
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

    async def ready(self, edition: Edition) -> list[bool]:
        """Open a bundle, if it isn't held; true for each tree of it."""
        held = self._held.get(edition)  # without waiting for a turn, as health checks come here
        ensemble, _ = held if held else await self._in_turn(lambda: self._of(edition))
        return [True] * len(ensemble.trees)

    async def find(self, edition: Edition, tokens: Ragged) -> list[Ballot]:
        """What each of the trees finds for some documents: `Ensemble.find`."""
        return await self._in_turn(lambda: self._of(edition)[0].find(tokens))

    async def score(self, edition: Edition, tokens: Ragged, labels: np.ndarray) -> list[np.ndarray]:
        """What each tree says of given labels: `Ensemble.score_each`."""
        return await self._in_turn(lambda: list(self._of(edition)[0].score_each(tokens, labels)))

    async def explain(
        self, edition: Edition, words: np.ndarray, real: int, labels: Sequence[int]
    ) -> list[list[tuple[Step, ...]]]:
        """Each tree's paths to some labels of one text: `explain.paths`."""

        def work() -> list[list[tuple[Step, ...]]]:
            ensemble, index = self._of(edition)
            return [paths(tree, words, real, labels, index) for tree in ensemble.trees]

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
            numbers = range(bundle.trees) if self.numbers is None else self.numbers
            trees = [bundle.tree(number, self.precision) for number in numbers]
            return Ensemble(trees, bundle.votes), bundle.labels
        except SettingsError as error:
            raise EditionError(str(error)) from None

    async def _in_turn(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._turn:
                return work()

        return await asyncio.to_thread(alone)
