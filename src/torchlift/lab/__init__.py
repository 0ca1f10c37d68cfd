"""The laboratory: benchmarks, the reproduction of the paper, the cost model, the test of endurance."""
