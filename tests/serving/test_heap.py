"""Garbage collections of a server leave out the objects of a bundle, and nothing is kept indefinitely."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from serve_app.edition import exclude_from_collections


class Cyclic:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_existing_objects_are_not_examined_again() -> None:
    kept = [Cyclic() for _ in range(1_000)]
    exclude_from_collections()
    assert gc.get_freeze_count() > len(kept)
    assert len(gc.get_objects()) < len(kept)


def test_a_cycle_among_them_is_freed_by_the_next_call() -> None:
    cyclic = Cyclic()
    alive = weakref.ref(cyclic)
    exclude_from_collections()
    del cyclic
    gc.collect()
    assert alive() is not None
    exclude_from_collections()
    assert alive() is None


def test_an_object_without_a_cycle_is_freed_at_once() -> None:
    kept = {3}
    alive = weakref.ref(kept)
    exclude_from_collections()
    del kept
    assert alive() is None
