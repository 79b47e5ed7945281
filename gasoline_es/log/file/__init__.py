"""The file log: JSON Lines in a directory, shared by processes. Format and protocol: docs/file-log-format.md."""
