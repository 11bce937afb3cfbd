"""The identity of a deployed bundle.

A roll-out replaces the bundle while requests are in flight, so each call to a deployment names the edition it is for.
"""

from dataclasses import dataclass
from pathlib import Path

from axml_ray.core.errors import SettingsError
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import MANIFEST, sha256


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
        if sha256(bundle.directory / MANIFEST) != self.checksum:
            raise SettingsError(
                f"{self.directory}: the bundle was replaced since it was deployed; deploy again with another `revision`"
            )
        return bundle
