"""``gasoline dev``: a worker that starts anew whenever the code is saved, and a live tree of what runs (decision 0027).

Two processes: ``session`` supervises and shows, ``child`` is the worker. What the two say to each other is in ``reports``.
"""
