"""The steps of the commands train, evaluate and compare."""
