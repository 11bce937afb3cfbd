"""Unicode's composed form, NFC, in which all words, labels and names of a corpus are.

"ü" may be one character, or "u" and a combining mark, as in file names of macOS and in text taken out of PDF. Both look
alike and are different strings. Whatever is compared with words or labels of a corpus is composed first.
"""

import unicodedata

import numpy as np
import pyarrow as pa

_FIRST_CHANGED = 0xCC
"""First byte, in UTF-8, of U+0300; composition changes no character below it."""


def composed(text: str) -> str:
    r"""Return `text` in composed form: `"u\u0308"` becomes `"ü"`."""
    return unicodedata.normalize("NFC", text)


def composed_strings(strings: pa.Array) -> pa.Array:
    """Return strings (string [n], without nulls) in composed form; not a copy if all of them are."""
    data = strings.buffers()[2]
    if data is None or np.frombuffer(data, np.uint8).max(initial=0) < _FIRST_CHANGED:
        return strings
    values = strings.to_pylist()
    changed = [composed(value) for value in values]
    return strings if changed == values else pa.array(changed, pa.string())
