"""Why a label was given: words, members, and the API's answers."""
