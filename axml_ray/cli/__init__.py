"""The command `axml-ray`: one module a subcommand, and what they share."""
