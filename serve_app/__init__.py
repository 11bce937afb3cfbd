"""A Ray Serve application that serves a bundle over HTTP, with a JSON API and a web page."""
