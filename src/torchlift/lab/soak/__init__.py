"""Training under kills, pauses and full disks."""
