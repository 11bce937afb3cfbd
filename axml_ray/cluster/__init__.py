"""Connection to Ray: joining or starting a cluster, tokens."""
