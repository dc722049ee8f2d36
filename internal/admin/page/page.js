// SPDX-License-Identifier: Apache-2.0

// Keeps the page current: the server renders the main part, and this script asks for it again
// after each event, at most once a second. The token of the admin API is kept in the tab.

"use strict";

(() => {
	const key = "holdgate-token";
	const main = document.getElementById("main");
	const live = document.getElementById("live");
	const form = document.getElementById("unlock");
	const field = document.getElementById("token");
	const forget = document.getElementById("forget");
	const clock = /<time id="seen"[^>]*>[^<]*<\/time>/; // when the server was asked
	const said = new Set(["waking", "awake", "asleep", "failed"]);

	let token = sessionStorage.getItem(key) || "";
	let shown = "";       // the text of the main part
	let lastEvent = "";   // its id
	let stream = null;    // the AbortController of the stream of events
	let due = null;       // the timer of the next refresh
	let asking = false;
	let again = false;    // something happened while the main part was asked for
	let refreshed = 0;    // when it was last asked for

	// readable shows characters that are not printed by their numbers, as the server does.
	const readable = (text) => text.replace(/[\p{C}\u2028\u2029]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");

	const say = (text) => {
		const next = readable(text);
		if (live.textContent !== next) live.textContent = next;
	};

	const call = (path, options = {}) => {
		const headers = { ...options.headers };
		if (token) headers.Authorization = "Bearer " + token;
		return fetch(path, { ...options, headers, cache: "no-store", redirect: "error", credentials: "omit" });
	};

	// lock asks for the token.
	const lock = (text) => {
		sessionStorage.removeItem(key);
		token = "";
		disconnect();
		cancel();
		shown = "";
		main.replaceChildren();
		form.hidden = false;
		forget.hidden = true;
		say(text);
		field.focus();
	};

	// show puts the answer of the server in place of the main part, unless only the clock is
	// another. The focus stays where it is.
	const show = (text) => {
		form.hidden = true;
		forget.hidden = token === "";
		const [seen] = text.match(clock) || [""];
		const rest = text.replace(clock, "");
		if (rest === shown) {
			document.getElementById("seen").textContent = seen.replace(/<[^>]*>/g, "");
			return;
		}
		const selection = getSelection();
		if (!selection.isCollapsed && main.contains(selection.anchorNode)) return; // somebody copies a text
		shown = rest;
		const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
		const next = new DOMParser().parseFromString(text, "text/html");
		main.replaceChildren(...next.body.childNodes);
		unhide();
		if (focused) (document.getElementById(focused) || main).focus();
	};

	const unhide = () => { for (const b of main.querySelectorAll("[data-wake]")) b.hidden = false; };

	const refresh = async () => {
		due = null;
		if (!form.hidden && !token) return; // it asks for the token
		if (asking) { again = true; return; }
		asking = true;
		refreshed = Date.now();
		try {
			const answer = await call("page/main");
			if (answer.status === 401) { lock(token ? "This is not the token of the admin API." : ""); return; }
			if (!answer.ok) throw new Error(String(answer.status));
			show(await answer.text());
			if (live.dataset.away) { delete live.dataset.away; say(""); }
			if (!stream && !document.hidden) connect();
			later(again || main.querySelector("progress") ? 1000 : 5000);
		} catch {
			live.dataset.away = "1";
			say("The router does not answer. Trying again.");
			later(3000);
		} finally {
			asking = again = false;
		}
	};

	// later refreshes the main part after a time, unless that is due earlier anyway.
	const later = (ms) => {
		const at = Date.now() + ms;
		if (document.hidden || (due && due.at <= at)) return;
		cancel();
		due = { at, id: setTimeout(refresh, ms) };
	};

	const cancel = () => { if (due) clearTimeout(due.id); due = null; };

	const disconnect = () => { if (stream) stream.abort(); stream = null; delete live.dataset.stream; };

	const connect = async () => {
		const own = stream = new AbortController();
		try {
			const headers = lastEvent ? { "Last-Event-ID": lastEvent } : {};
			const answer = await call("v1/events", { headers, signal: own.signal });
			if (!answer.ok) throw new Error(String(answer.status));
			live.dataset.stream = "open";
			later(1000); // for what happened before it was open
			const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
			let rest = "";
			for (;;) {
				const { value, done } = await reader.read();
				if (done) break;
				const blocks = (rest + value).split("\n\n");
				rest = blocks.pop();
				for (const block of blocks) take(block);
			}
		} catch {
			// The next refresh connects again.
		}
		if (stream === own) { stream = null; delete live.dataset.stream; }
	};

	// take handles one event.
	const take = (block) => {
		let data = "";
		for (const line of block.split("\n")) {
			if (line.startsWith("id: ")) lastEvent = line.slice(4);
			if (line.startsWith("data: ")) data = line.slice(6);
		}
		if (!data) return;
		const e = JSON.parse(data);
		if (said.has(e.type)) say(e.model + (e.type === "failed" ? ": the wake failed" : " is " + e.type));
		later(Math.max(0, refreshed + 1000 - Date.now()));
	};

	form.addEventListener("submit", (e) => {
		e.preventDefault();
		token = field.value.trim();
		field.value = "";
		sessionStorage.setItem(key, token);
		say("");
		refresh();
	});

	forget.addEventListener("click", () => lock("The token is forgotten."));

	main.addEventListener("click", async (e) => {
		const button = e.target.closest("[data-wake]");
		if (!button) return;
		const model = button.dataset.wake;
		try {
			const answer = await call("v1/wake/" + encodeURIComponent(model), { method: "POST" });
			if (answer.status === 401) { lock("The wake needs the token."); return; }
			const body = await answer.json();
			say(answer.ok ? model + " is wanted for " + body.wanted_for : body.error.message);
		} catch {
			say("The router does not answer.");
		}
		later(0);
	});

	document.addEventListener("visibilitychange", () => {
		if (!document.hidden) { refresh(); return; }
		disconnect();
		cancel();
	});

	if (document.body.hasAttribute("data-locked") && !token) {
		field.focus();
		return;
	}
	unhide();
	refresh();
})();
