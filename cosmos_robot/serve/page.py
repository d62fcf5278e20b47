"""A small web page of a running server: health, rates, where the time goes, the last pictures. Read only, loopback."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Final
from urllib.parse import unquote

from PIL import Image as PILImage

from cosmos_robot.errors import InputError
from cosmos_robot.serve.service import Service

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src 'self'; connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
}


class StatusPage:
    """The page of ``service`` on ``http://127.0.0.1:port``; port 0 takes a free one."""

    def __init__(self, service: Service, port: int):
        handler = type("Handler", (_Handler,), {"service": service})
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"no page on port {port}: {error}; choose another port") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> str:
        """Serve it. Returns the address."""
        self._thread.start()
        return self.address

    def close(self) -> None:
        """Take it away."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> StatusPage:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    service: Service

    def do_GET(self) -> None:
        path = unquote(self.path.split("?")[0])
        if path == "/":
            page = files("cosmos_robot.serve").joinpath("page.html").read_bytes()
            self._reply(200, "text/html; charset=utf-8", page)
        elif path == "/facts.json":
            self._reply(200, "application/json", json.dumps(self._facts()).encode())
        elif path.startswith("/pictures/"):
            self._picture(path.removeprefix("/pictures/").removesuffix(".png"))
        else:
            self._reply(404, "text/plain", b"not here\n")

    def _facts(self) -> dict[str, Any]:
        return {**self.service.stats(), "cameras": list(self.service.last_pictures())}

    def _picture(self, camera: str) -> None:
        image = self.service.last_pictures().get(camera)
        if image is None:
            self._reply(404, "text/plain", b"no picture yet\n")
            return
        file = io.BytesIO()
        PILImage.fromarray(image).save(file, "PNG", compress_level=1)
        self._reply(200, "image/png", file.getvalue())

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a page that is looked at every second is no news."""
