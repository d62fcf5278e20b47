"""The ``serve`` command: a checkpoint, or a search with it, behind every protocol that somebody asks for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from cosmos_robot.errors import InputError
from cosmos_robot.policies.remote import TOKEN_VARIABLE
from cosmos_robot.serve.server import ServerSettings, ZmqServer
from cosmos_robot.serve.service import Models, Service, ServiceSettings, take_short_turns
from cosmos_robot.serve.views import Pictures


@dataclass(frozen=True)
class ServeConfig:
    """Serve a checkpoint."""

    ckpt: str
    """Shipped name, folder or hub id."""
    plan: str | None = None
    """Answer every question by search, such as best-of-8; the verb ``plan`` then also takes a deadline."""
    planning_ckpt: str | None = None
    """Checkpoint that imagines and scores, if not the one that proposes."""
    executor: str = "in-process"
    """How a search's candidates are worked out: in-process, threads:COUNT or ray:COUNT."""
    port: int = 5555
    """Port of our own protocol over ZMQ; 0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; anything but this machine's own needs a token in the environment variable
    COSMOS_ROBOT_TOKEN."""
    openpi_port: int | None = None
    """Also speak openpi's websocket protocol on this port (8000 is what its clients expect)."""
    gr00t_port: int | None = None
    """Also speak GR00T's ZMQ protocol on this port."""
    pictures: Pictures = "exact"
    """What other people's clients may send: pictures of the contract's size only, or resized ones."""
    openpi_rows: int | None = None
    """Rows of a reply to openpi's clients, all if not given; its DROID example wants exactly 10."""
    roboarena: bool = False
    """Greet openpi's clients with RoboArena's six keys, as its checker demands."""
    page_port: int | None = None
    """Also show a page of health and latency on http://127.0.0.1:PORT."""
    device: str = "cpu"
    """Torch device."""
    batch: int = 8
    """Most questions answered in one batch."""


def main_serve(config: Annotated[ServeConfig, tyro.conf.arg(name="")]) -> int:
    """Serve a checkpoint until Ctrl-C or SIGTERM, then finish what runs and say goodbye to what waits."""
    from rich.console import Console

    console = Console(highlight=False)
    settings = ServerSettings(config.host, config.port, os.environ.get(TOKEN_VARIABLE, ""))
    models = load_models(config)
    ending = threading.Event()
    before = {number: signal.signal(number, lambda *_: ending.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.ExitStack() as stack:
            take_short_turns()
            service = Service(models, ServiceSettings(batch=config.batch))
            stack.callback(service.close)
            console.print(f"warming up {service.contract.model.name} ...")
            service.start()
            for what, address in listen(service, settings, config, stack):
                console.print(f"{what}: {address}", soft_wrap=True)
            console.print("ready; Ctrl-C ends")
            ending.wait()
            console.print("closing: finishing what runs")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def load_models(config: ServeConfig) -> Models:
    """The policy of ``config``, or its search as one. Raises as ``load_policy`` and ``load_planner``."""
    if config.plan is None:
        from cosmos_robot.policies import load_policy

        if config.planning_ckpt is not None or config.executor != "in-process":
            raise InputError("--planning-ckpt and --executor are for a search; say which with --plan: best-of-8")
        return Models(load_policy(config.ckpt, device=config.device))
    from cosmos_robot.planning import load_planner
    from cosmos_robot.planning.policy import PlanningPolicy

    chosen = {"device": config.device, "executor": config.executor}
    searching = PlanningPolicy(load_planner(config.ckpt, config.plan, config.planning_ckpt, **chosen))
    return Models(searching, plan=searching.plan)


def listen(
    service: Service, settings: ServerSettings, config: ServeConfig, stack: contextlib.ExitStack
) -> list[tuple[str, str]]:
    """Start what ``config`` asks for; ``stack`` ends it again. Returns names and addresses."""
    ports = [p for p in (config.port, config.openpi_port, config.gr00t_port, config.page_port) if p]
    if len(set(ports)) != len(ports):
        raise InputError(f"ports {ports}: each protocol needs a port of its own")
    servers: list[tuple[str, Any]] = [("zmq", ZmqServer(service, settings))]
    if config.openpi_port is not None:
        from cosmos_robot.serve.openpi import OpenpiServer, OpenpiSettings

        openpi = OpenpiSettings(
            settings.host,
            config.openpi_port,
            settings.token,
            rows=config.openpi_rows,
            pictures=config.pictures,
            roboarena=config.roboarena,
        )
        servers.append(("openpi", OpenpiServer(service, openpi)))
    if config.gr00t_port is not None:
        from cosmos_robot.serve.gr00t import Gr00tServer, Gr00tSettings

        gr00t = Gr00tSettings(settings.host, config.gr00t_port, settings.token, pictures=config.pictures)
        servers.append(("gr00t", Gr00tServer(service, gr00t)))
    if config.page_port is not None:
        from cosmos_robot.serve.page import StatusPage

        servers.append(("page", StatusPage(service, config.page_port)))
    found = []
    for what, server in servers:
        found.append((what, server.start()))
        stack.callback(server.close)
    return found
