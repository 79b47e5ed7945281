"""What tests of programs on this library may use: contract suites and faults below the log."""
