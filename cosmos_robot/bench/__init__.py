"""Measurements of speed, and side-by-side benchmarks."""
