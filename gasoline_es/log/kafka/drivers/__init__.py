"""The Kafka clients that the log can use, behind one interface."""
