"""Before anything is spent: what a training will hold and how long it will take."""
