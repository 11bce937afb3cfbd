"""The identity of a deployed bundle.

A roll-out replaces the bundle while requests are in flight, so each call to a deployment names the edition it is for.
"""

import gc
from dataclasses import dataclass
from pathlib import Path

from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import with_urls
from axml_ray.core.storage import sha256
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import MANIFEST


class EditionError(RuntimeError):
    """A deployed bundle can no longer be used; an error of the server (500), not of the request."""


@dataclass(frozen=True, slots=True)
class Edition:
    """A bundle in the state in which its checksums were verified.

    Attributes:
        directory: path of the bundle, the same on every node.
        checksum: SHA-256 of its manifest, which contains the checksums of all other files.
    """

    directory: str
    checksum: str

    @property
    def name(self) -> str:
        """A short identifier of the edition: the first 12 digits of its checksum."""
        return self.checksum[:12]

    @classmethod
    def checked(cls, directory: Path) -> "Edition":
        """Verify all checksums of the bundle in a directory, and return its edition.

        Raises:
            BundleError: there is no bundle, or it is incomplete or was changed.
        """
        bundle = Bundle.open(directory)
        return cls(str(bundle.directory), sha256(bundle.directory / MANIFEST))

    def open(self) -> Bundle:
        """Open the bundle without verifying all checksums again.

        Raises:
            SettingsError: the directory now contains another edition, or no bundle.
        """
        bundle = Bundle.open(self.directory, verify=False)
        self.check(bundle)
        return bundle

    def check(self, bundle: Bundle) -> None:
        """Raise SettingsError if the bundle was replaced, also to be called when all files that are needed are open."""
        if sha256(bundle.directory / MANIFEST) != self.checksum:
            raise SettingsError(
                f"{with_urls(self.directory)}: the bundle was replaced since it was deployed; deploy again with "
                "another `revision`"
            )


def exclude_from_collections() -> None:
    """Exclude all objects that exist now from later garbage collections.

    Otherwise Python examines every object of the bundle and of the imported packages about every thousand requests,
    which takes 0.2 s with the demo's bundle, and no request is answered meanwhile. Excluded objects are still freed
    with their last reference, and reference cycles among them at the next call of this function.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
