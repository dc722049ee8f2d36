// SPDX-License-Identifier: Apache-2.0

// Sends one question with the official OpenAI or Anthropic client for Node, and
// prints the result as one line of JSON, in the format of ../python/chat.py.

import { performance } from "node:perf_hooks";
import { parseArgs } from "node:util";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { values: options } = parseArgs({
  options: {
    "base-url": { type: "string" },
    model: { type: "string" },
    api: { type: "string", default: "openai" },
    stream: { type: "boolean", default: false },
    prompt: { type: "string", default: "Say hello in one short sentence." },
    "api-key": { type: "string", default: "none" },
    "max-tokens": { type: "string", default: "16" },
    "max-retries": { type: "string", default: "0" },
    timeout: { type: "string", default: "60" }, // seconds
  },
});

const origin = options["base-url"]?.replace(/\/+$/, "");
const settings = {
  apiKey: options["api-key"],
  maxRetries: Number(options["max-retries"]),
  timeout: 1000 * Number(options.timeout),
};
const question = {
  model: options.model,
  max_tokens: Number(options["max-tokens"]),
  messages: [{ role: "user", content: options.prompt }],
};

/** Returns the pieces of text that the Anthropic client received. */
async function askAnthropic() {
  const client = new Anthropic({ ...settings, baseURL: origin });
  if (!options.stream) {
    const answer = await client.messages.create(question);
    return [answer.content.map((block) => block.text).join("")];
  }
  const pieces = [];
  for await (const event of await client.messages.create({ ...question, stream: true })) {
    if (event.type === "content_block_delta") pieces.push(event.delta.text);
  }
  return pieces;
}

/** Returns the pieces of text that the OpenAI client received. */
async function askOpenAI() {
  const client = new OpenAI({ ...settings, baseURL: `${origin}/v1` });
  question.temperature = 0;
  if (!options.stream) {
    const answer = await client.chat.completions.create(question);
    return [answer.choices[0].message.content];
  }
  const pieces = [];
  for await (const event of await client.chat.completions.create({ ...question, stream: true })) {
    for (const choice of event.choices) {
      if (choice.delta.content) pieces.push(choice.delta.content);
    }
  }
  return pieces;
}

if (!options["base-url"] || !options.model) {
  console.error("usage: node chat.mjs --base-url URL --model M [--api anthropic] [--stream]");
  process.exit(2);
}
const begin = performance.now();
try {
  const pieces = await (options.api === "anthropic" ? askAnthropic() : askOpenAI());
  const seconds = Math.round(performance.now() - begin) / 1000;
  console.log(JSON.stringify({ text: pieces.join(""), seconds, chunks: pieces.length }));
} catch (error) {
  console.log(JSON.stringify({ error: error.constructor.name, status: error.status ?? 0, message: error.message }));
  process.exitCode = 1;
}
