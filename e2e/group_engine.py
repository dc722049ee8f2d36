# SPDX-License-Identifier: Apache-2.0
"""An engine for the long test of groups: it starts slowly or not at all, and records each
request that it answers. An engine that starts while another one runs reports it."""

import fcntl
import json
import random
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

name, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
lock = (folder / "awake").open("w")  # the system gives it back when the process ends
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with (folder / "faults").open("a") as faults:
        faults.write(f"{name} starts while another engine runs\n")
with (folder / "starts").open("a") as starts:
    starts.write(f"{name}\n")


def end(*_: object) -> None:
    """Take a moment to end, as an engine with a GPU does."""
    time.sleep(random.uniform(0, 0.5))
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
time.sleep(random.uniform(0, 2))
if random.random() < 0.25:
    sys.exit("no memory")


class Handler(BaseHTTPRequestHandler):
    """Answers requests with the model's name."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answer(self, text: str) -> None:
        """Answer with one text."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        """Answer the health check."""
        self.answer("")

    def do_POST(self) -> None:
        """Record the request before it is answered."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with (folder / "answered").open("a") as answered:
            answered.write(f"{body['id']}\n")
        time.sleep(random.uniform(0, 1))
        self.answer(name)


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
