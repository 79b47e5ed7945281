"""State derived from the log: folds of the events that anyone can rebuild."""
