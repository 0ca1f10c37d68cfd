"""Training of networks: data in batches, phases, records and checkpoints."""
