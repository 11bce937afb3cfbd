"""Which bundle an answer comes from. A roll-out changes it while requests are under way, so each call names it."""

from dataclasses import dataclass
from pathlib import Path

from axml_ray.inference.bundle import MANIFEST, Bundle, sha256
from axml_ray.settings import SettingsError


class EditionError(RuntimeError):
    """A bundle that was deployed can't be used any more: the server's fault, and none of the request's."""


@dataclass(frozen=True, slots=True)
class Edition:
    """A bundle as it was when its checksums were compared.

    Attributes:
        directory: where it lies, on every node.
        mark: SHA-256 of its manifest, which holds the checksums of everything else.
    """

    directory: str
    mark: str

    @property
    def name(self) -> str:
        """Short, for people."""
        return self.mark[:12]

    @classmethod
    def checked(cls, directory: Path) -> "Edition":
        """The edition in a directory, all of it compared with its checksums.

        Raises:
            BundleError: there is none, or it is incomplete or changed.
        """
        bundle = Bundle.open(directory)
        return cls(str(bundle.directory), sha256(bundle.directory / MANIFEST))

    def open(self) -> Bundle:
        """The bundle, without reading all of it again.

        Raises:
            SettingsError: the directory holds another edition by now, or none.
        """
        bundle = Bundle.open(self.directory, verify=False)
        if sha256(bundle.directory / MANIFEST) != self.mark:
            raise SettingsError(
                f"{self.directory}: another bundle than the one deployed; deploy again, with another `revision`"
            )
        return bundle
