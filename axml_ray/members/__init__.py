"""Ensemble members: models that score labels for a text.

`member.py` defines the interface; `settings/members.py` registers the kinds.
"""
