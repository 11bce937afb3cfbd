"""The ensemble behind HTTP: a Ray Serve application, its API, and a page."""
