"""Unicode's composed form, NFC, in which all words, labels and names of a corpus are.

"ü" may be one character, or "u" and a combining mark, as in file names of macOS and in text taken out of PDF. Both look
alike and are different strings. Whatever is compared with words or labels of a corpus is composed first.
"""

import unicodedata

from tokenizers import normalizers

_NFC = normalizers.NFC()


def composed(text: str) -> str:
    r"""Return `text` in composed form: `"u\u0308"` becomes `"ü"`."""
    return unicodedata.normalize("NFC", text)


def composed_in_linear_time(text: str) -> str:
    """Return `composed(text)`: slower for most texts, but not quadratic in the length of a sequence of marks.

    For what comes in requests: Python would stand still for minutes. `text` has no lone surrogates.
    """
    return _NFC.normalize_str(text)
