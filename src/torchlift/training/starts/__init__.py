"""Where training starts: the given weights, or others that are drawn, scaled or fitted to data."""
