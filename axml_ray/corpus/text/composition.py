"""Unicode's composed form, NFC, in which all words, labels and names of a corpus are.

"ü" may be one character, or "u" and a combining mark, as in file names of macOS and in text taken out of PDF. Both look
alike and are different strings. Whatever is compared with words or labels of a corpus is composed first.
"""

import unicodedata


def composed(text: str) -> str:
    r"""Return `text` in composed form: `"u\u0308"` becomes `"ü"`."""
    return unicodedata.normalize("NFC", text)
