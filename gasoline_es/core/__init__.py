"""The pure core: deciding, replaying and folding, without clock, disk, network or chance (design §1.4)."""
