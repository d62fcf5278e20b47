"""Demonstrations: recording, storing as LeRobot datasets, reading back.

Axis legend: N rows (decision moments) of an episode, T steps of a chunk, D width, H W image height and width.
"""
