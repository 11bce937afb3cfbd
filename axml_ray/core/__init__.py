"""Modules that every package uses: ragged arrays, files, paths of a run, limits of the machine."""
