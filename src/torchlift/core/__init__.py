"""What every other part builds on: errors and checks."""
