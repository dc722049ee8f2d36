# SPDX-License-Identifier: Apache-2.0
"""Ask one question with an official client package, and print the result.

Prints one line of JSON. On success {"text", "seconds", "chunks"} and status 0,
where chunks counts the pieces of text that a stream brought (1 without stream).
On any error that the package raises {"error", "status", "message"} and status 1,
where status is the HTTP status, or 0 if the error carries none.
"""

import argparse
import json
import sys
import time


def options():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Ask one question with an official client package.")
    parser.add_argument("--base-url", required=True, help="origin of the edge, without /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--api", choices=["openai", "anthropic"], default="openai")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--prompt", default="Say hello in one short sentence.")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="may repeat")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--max-retries", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds")
    return parser.parse_args()


def client_settings(opts, base_url):
    """Return what both packages' constructors are given."""
    headers = dict(header.split(":", 1) for header in opts.header)
    return {
        "base_url": base_url,
        "api_key": opts.api_key,
        "max_retries": opts.max_retries,
        "timeout": opts.timeout,
        "default_headers": {name.strip(): value.strip() for name, value in headers.items()},
    }


def question(opts):
    """Return what both packages' requests are given."""
    return {
        "model": opts.model,
        "max_tokens": opts.max_tokens,
        "temperature": 0,
        "messages": [{"role": "user", "content": opts.prompt}],
    }


def ask_openai(opts):
    """Return the pieces of text that the openai package received."""
    import openai

    client = openai.OpenAI(**client_settings(opts, opts.base_url.rstrip("/") + "/v1"))
    if not opts.stream:
        answer = client.chat.completions.create(**question(opts))
        return [answer.choices[0].message.content]
    with client.chat.completions.create(stream=True, **question(opts)) as events:
        return [choice.delta.content for event in events for choice in event.choices if choice.delta.content]


def ask_anthropic(opts):
    """Return the pieces of text that the anthropic package received."""
    import anthropic

    client = anthropic.Anthropic(**client_settings(opts, opts.base_url.rstrip("/")))
    # The package dropped temperature from its parameters: it goes into the body.
    asked = question(opts)
    asked["extra_body"] = {"temperature": asked.pop("temperature")}
    if not opts.stream:
        answer = client.messages.create(**asked)
        return ["".join(block.text for block in answer.content if block.type == "text")]
    with client.messages.stream(**asked) as events:
        return list(events.text_stream)


def main():
    """Ask, and print the line."""
    opts = options()
    ask = {"openai": ask_openai, "anthropic": ask_anthropic}[opts.api]
    begin = time.monotonic()
    try:
        pieces = ask(opts)
    except Exception as error:  # whatever the package raises is what the test asks about
        print(
            json.dumps(
                {
                    "error": type(error).__name__,
                    "status": getattr(error, "status_code", None) or 0,
                    "message": str(error),
                }
            )
        )
        return 1
    seconds = round(time.monotonic() - begin, 3)
    print(json.dumps({"text": "".join(pieces), "seconds": seconds, "chunks": len(pieces)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
