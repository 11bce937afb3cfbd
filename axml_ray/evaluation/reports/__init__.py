"""The report as table and web page."""
