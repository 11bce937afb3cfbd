"""How applications of the tests are deployed."""

TREES = 3
SMALL = {"cpus": 0.1, "threads": 1}
