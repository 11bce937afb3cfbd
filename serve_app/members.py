"""The deployment of ensemble members: all of a bundle's, those of one label tree, or those of the whole run."""

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TypeVar

import numpy as np
import torch

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.text.tokenizer import UNKNOWN
from axml_ray.ensemble.ensemble import Ensemble
from axml_ray.inference.explain.explain import paths_of
from axml_ray.members.explanation import ExplainedText, TreePath
from axml_ray.network.backends.devices import reserved_device
from axml_ray.network.backends.precision import use_threads
from serve_app.edition import Edition, EditionError, exclude_from_collections

EDITIONS = 2
"""Number of bundles held open: during a roll-out, requests for the previous bundle are still in flight."""

HUNG_S = 10.0
"""Least seconds after which a prediction counts as hung."""

T = TypeVar("T")
logger = logging.getLogger("ray.serve")


class Members:
    """A replica with some members of a bundle; it opens the bundle of a call's edition when it is needed.

    Calls are processed one at a time, as each uses all of the replica's threads. Opening a bundle, which may take
    longer than the time limit of an answer, holds up only calls for that bundle.

    Args:
        names: names of the members; None for all members of a bundle.
        threads: number of PyTorch threads.
        gpus: GPUs that Ray reserves for the replica; 0 computes on the CPU.
        time_limit_s: seconds after which no caller waits for a prediction any more.
    """

    def __init__(self, names: Sequence[str] | None, threads: int, gpus: float = 0.0, time_limit_s: float = HUNG_S):
        use_threads(threads)
        self.names, self.gpus, self.hung_s = names, gpus, max(time_limit_s, HUNG_S)
        self._predicting = threading.Lock()
        self._opening: dict[Edition, asyncio.Task[tuple[Ensemble, LabelIndex]]] = {}
        self._open: OrderedDict[Edition, tuple[Ensemble, LabelIndex]] = OrderedDict()
        self._started: float | None = None  # when the prediction that runs now began
        self._device_failed = False

    async def reconfigure(self, config: dict[str, str]) -> None:
        """Open a bundle that is rolled out; Serve calls this with `user_config`, first in replicas without requests.

        Raises:
            EditionError: the bundle is unusable; Serve reports it, and keeps the replicas of the previous bundle.
        """
        await self.ready(Edition(**config))

    async def check_health(self) -> None:
        """End the process if a prediction hangs or its GPU failed; Serve calls this often, and replaces it at once.

        After an error of CUDA, all later calls of a process fail. Of a replica that raises an error, Serve would wait
        for the calls in flight, of which the one that hangs never ends; those of a dead replica are repeated elsewhere.
        """
        started = self._started
        if started is not None and (seconds := time.monotonic() - started) > self.hung_s:
            logger.error("a prediction has been running for %.0f s; the replica ends itself", seconds)
            os._exit(1)
        if self._device_failed:
            logger.error("the GPU failed; the replica ends itself")
            os._exit(1)

    async def ready(self, edition: Edition) -> dict[str, bool]:
        """Open a bundle if it is not open yet; return true for the name of each member."""
        ensemble, _ = await self._opened(edition)
        return dict.fromkeys(ensemble.members, True)

    async def rank(self, edition: Edition, tokens: Ragged) -> dict[str, TopK]:
        """Return each member's best labels of some documents, as `Ensemble.rank_members` does."""
        return await self._run(edition, lambda ensemble, _: ensemble.rank_members(tokens))

    async def score(self, edition: Edition, tokens: Ragged, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return each member's scores of given labels, as `Ensemble.score_members` does."""
        return await self._run(edition, lambda ensemble, _: ensemble.score_members(tokens, labels))

    async def explain(
        self, edition: Edition, words: np.ndarray, real: int, labels: Sequence[int]
    ) -> dict[str, list[TreePath] | None]:
        """Return each member's tree paths to some labels of one text; None for members without attention.

        `words` are the word ids of the text, of which the tokenizer found the first `real`; the rest is padding.
        """

        def work(ensemble: Ensemble, index: LabelIndex) -> dict[str, list[TreePath] | None]:
            text = ExplainedText(words, real)
            paths = paths_of(ensemble.members, text, labels, index)
            return {name: paths.get(name) for name in ensemble.members}

        return await self._run(edition, work)

    async def _opened(self, edition: Edition) -> tuple[Ensemble, LabelIndex]:
        """Return the members and labels of an edition, opened now if necessary.

        All calls await the same opening: if each waited in a thread, none would be left for other editions.

        Raises:
            EditionError: the bundle is unusable.
        """
        if edition in self._open:
            return self._open[edition]
        if edition not in self._opening:
            # In a context of its own: in a request's context, Serve would cancel it together with the request.
            opening = asyncio.create_task(asyncio.to_thread(self._load, edition), context=Context())
            opening.add_done_callback(lambda _: self._opening.pop(edition))
            self._opening[edition] = opening
        return await asyncio.shield(self._opening[edition])

    def _load(self, edition: Edition) -> tuple[Ensemble, LabelIndex]:
        try:
            bundle = edition.open()
            opened = bundle.ensemble(None, reserved_device(self.gpus), self.names), bundle.labels
            edition.check(bundle)
        except SettingsError as error:
            raise EditionError(str(error)) from None
        with self._predicting:
            if self.gpus:  # its libraries load their kernels now, and not in the time of a request
                opened[0].rank_members(Ragged.from_rows([[UNKNOWN]]))
            self._open[edition] = opened
            if len(self._open) > EDITIONS:
                self._open.popitem(last=False)
            exclude_from_collections()
        return opened

    async def _run(self, edition: Edition, work: Callable[[Ensemble, LabelIndex], T]) -> T:
        """Run blocking work on the members of an edition in a thread, one piece at a time."""

        ensemble, labels = await self._opened(edition)

        def run() -> T:
            with self._predicting:
                if edition in self._open:
                    self._open.move_to_end(edition)  # the least recently used edition is closed first
                self._started = time.monotonic()
                try:
                    return work(ensemble, labels)
                except torch.AcceleratorError:
                    self._device_failed = True
                    raise
                finally:
                    self._started = None

        return await asyncio.to_thread(run)
