"""The Kafka log: the log port over Apache Kafka (design §6)."""
