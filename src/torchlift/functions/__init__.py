"""Convex functions: losses of outputs, priors of images, regularisers of parameters and states."""
