"""Command lines as the program reads them, without running anything."""

from __future__ import annotations

import argparse
import warnings

import tyro

from cosmos_robot import cli
from cosmos_robot.registry import Registry


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command: it refuses options that there are not, and misses those that are required."""
    command, registry = cli.COMMANDS[name], Registry("command")
    registry.add(name, command.path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way to a parser
        return tyro.extras.get_parser(registry.get(name), prog=name, config=cli.conventions(command))
