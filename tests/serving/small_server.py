"""How applications of the tests are deployed."""

TREES = 2
MEMBERS = 2 * TREES + 2
"""Networks and linear classifiers of each tree, nearest neighbours and label names of the run."""
PARTS = TREES + 1
"""Deployments of members with `colocate_members=false`: one for each tree, and one for the run."""
SMALL = {"cpus": 0.1}
