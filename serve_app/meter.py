"""Prometheus metrics of the application, which Ray exports together with its own `ray_serve_*`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ray.serve import metrics

from serve_app.service import Service

SECONDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
"""Upper bounds of the histogram's buckets, in seconds."""


class Meter:
    """Records metrics of tagging requests.

    Args:
        service: the service whose queue length is reported.
    """

    def __init__(self, service: Service):
        self.service = service
        self.texts = metrics.Counter("axml_ray_texts", description="Texts tagged.")
        self.failed = metrics.Counter(
            "axml_ray_failed", description="Tagging requests that ended in an error.", tag_keys=("error",)
        )
        self.seconds = metrics.Histogram(
            "axml_ray_seconds", description="Duration of a tagging request.", boundaries=SECONDS
        )
        self.waiting = metrics.Gauge("axml_ray_max_queued_texts", description="Texts in the queue for the members.")
        self.members = metrics.Gauge("axml_ray_members_used", description="Members that answered the last request.")

    @contextmanager
    def request(self, texts: int) -> Iterator[Callable[[int], None]]:
        """Measure one request.

        Args:
            texts: number of its texts.

        Yields:
            A function to be called with the number of members that answered.
        """
        started = time.perf_counter()
        try:
            yield self.members.set
        except BaseException as error:
            self.failed.inc(tags={"error": type(error).__name__})
            raise
        else:
            self.texts.inc(texts)
        finally:
            self.seconds.observe(time.perf_counter() - started)
            self.waiting.set(self.service.max_queued_texts)
