# SPDX-License-Identifier: Apache-2.0
"""An engine that greets: engine.py FILE writes its port to FILE once it listens."""

import http.server
import json
import pathlib
import sys


class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # the agent's health check
        self.answer({})

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        message = {"role": "assistant", "content": "hello from site b"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self.answer({"object": "chat.completion", "model": "hello", "choices": [choice]})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
pathlib.Path(sys.argv[1]).write_text(f"{server.server_port}\n")
server.serve_forever()
