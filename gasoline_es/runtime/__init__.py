"""The core at work in one process: partitions, bodies, activities, timers, a worker."""
