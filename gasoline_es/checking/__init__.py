"""Whether code still replays what is recorded: every history of a log through the bodies of a module, without a worker.

``verdict`` judges one history, ``histories`` reads them, ``check`` does it in parallel, ``report`` is what comes of it.
"""
