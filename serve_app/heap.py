"""Python's garbage collection in the processes of a server."""

import gc


def exclude_from_collections() -> None:
    """Exclude all objects that exist now from later garbage collections.

    Otherwise Python examines every object of the bundle and of the imported packages about every thousand requests,
    which takes 0.2 s with the demo's bundle, and no request is answered meanwhile. Excluded objects are still freed
    with their last reference, and reference cycles among them at the next call of this function.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
