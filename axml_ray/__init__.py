"""AttentionXML as a distributed Ray application."""
