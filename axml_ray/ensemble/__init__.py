"""Members' scores become one: the ensemble and its combiners."""
