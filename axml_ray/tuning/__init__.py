"""Settings found by trials on a part of a corpus, with Ray Tune."""
