"""One text with its labels: values, ids, separators, records in memory."""
