"""Reports of progress: phases, heartbeats and live bars."""
