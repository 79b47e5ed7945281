"""Where projections lie: tables and positions that change together, in generations that take each other's place."""
