"""Errors whose message says what is wrong and how to fix it; the command prints it without a traceback."""


class SettingsError(ValueError):
    """A wrong setting, or wrong input that a setting names; the message names it and says how to fix it."""


class JobError(RuntimeError):
    """A job cannot go on, for a reason that the message explains, so that nobody needs the traceback."""
