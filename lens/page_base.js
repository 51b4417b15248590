/* SPDX-License-Identifier: MIT */
"use strict";
const $ = (id) => document.getElementById(id);
const number = (x, digits) => x.toLocaleString("en-US", { maximumFractionDigits: digits === undefined ? 0 : digits });
const percent = (x) => number(100 * x, x < 0.01 ? 2 : 1) + " %";
const served = location.protocol === "http:" || location.protocol === "https:";

/* Creates an element with text and attributes. Model texts are only ever set as text, never as markup. */
function make(name, text, attributes) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  return e;
}

/* ---- blanks ---- */

const SIGNS = { " ": "\u2423", "\n": "\u21b5", "\t": "\u21e5", "\u00a0": "\u237d" };

/* Returns the sign of a character that has no ink. */
function signOf(c) {
  const code = c.codePointAt(0);
  return SIGNS[c] || (code < 32 ? String.fromCodePoint(0x2400 + code) : "[U+" + code.toString(16).toUpperCase().padStart(4, "0") + "]");
}

/* Returns a token's text with visible signs for blanks, control and format characters, and for no text. */
function signs(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Z}]/gu, signOf) || "\u2205";
}

/* Returns a token's text for running text: a token without ink as signs, another one as it is. Line breaks remain. */
function inked(text) {
  return /^[\p{Cc}\p{Cf}\p{Z}]*$/u.test(text) ? signs(text).replace(/\u21b5/g, "\u21b5\n") : text.replace(/\n/g, "\u21b5\n");
}

/* ---- kept data: survives a reload ---- */

const MOST_KEPT = 1000000; /* characters of one value */
const FIELDS = ["how", "attn", "budget", "most", "temp", "input", "prompt", "specs", "n-new", "drive"];
const kept = {
  on: served,
  read(name) {
    try { return kept.on ? JSON.parse(localStorage.getItem("kvasir." + name)) : null; } catch (e) { return null; }
  },
  /* Returns false, and keeps nothing, if the value is too long or the browser refuses it. */
  write(name, value) {
    const text = JSON.stringify(value);
    if (!kept.on) return false;
    try {
      localStorage.removeItem("kvasir." + name);
      if (text.length <= MOST_KEPT) localStorage.setItem("kvasir." + name, text);
      return text.length <= MOST_KEPT;
    } catch (e) {
      return false;
    }
  },
  clear() {
    for (const name of ["fields", "talk", "lens"]) localStorage.removeItem("kvasir." + name);
    sessionStorage.removeItem("kvasir.key");
  }
};

function keepFields() {
  const values = {};
  for (const id of FIELDS) values[id] = $(id).value;
  values.settings = $("settings").open;
  values.model = $("model").textContent;
  kept.write("fields", values);
}

function restoreFields() {
  const values = kept.read("fields") || {};
  for (const id of FIELDS) if (typeof values[id] === "string") $(id).value = values[id];
  $("settings").open = !!values.settings;
  return values;
}

/* ---- messages and progress ---- */

/* Shows an error or a notice that stays until the next request, with an action. No text: hides it. */
function notice(text, label, action) {
  $("notice").hidden = !text;
  $("notice-of").textContent = text || "";
  $("notice-do").hidden = !label;
  $("notice-do").textContent = label || "";
  $("notice-do").onclick = action || null;
}

/* Shows the progress of the request in progress. max 0: unknown. */
function busy(text, value, max) {
  $("busy-of").textContent = text;
  if (max) {
    $("bar").max = max;
    $("bar").value = Math.min(value, max);
  } else {
    $("bar").removeAttribute("value");
  }
}

/* ---- requests ---- */

let running = null; /* request that Esc aborts */

function headers() {
  const h = { "Content-Type": "application/json" };
  if ($("key").value) h.Authorization = "Bearer " + $("key").value;
  return h;
}

/* Throws the error of an answer that is not a success. */
async function check(answer) {
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({})), e = new Error("the server returned status " + answer.status);
  if (body.error) Object.assign(e, { message: body.error.message, code: body.error.code });
  e.status = answer.status;
  throw e;
}

/* Sends a request and hands its answer to take() in parts. Only one runs at a time. */
async function post(path, body, take) {
  running = new AbortController();
  notice();
  $("busy").hidden = false;
  busy("waiting for the server");
  $("send").disabled = $("look").disabled = true;
  try {
    const answer = await check(await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal }));
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      take(done ? decoder.decode() : decoder.decode(value, { stream: true }), done);
      if (done) return;
    }
  } finally {
    running = null;
    $("busy").hidden = true;
    $("send").disabled = $("look").disabled = false;
  }
}

/* Shows the error of a request. begun: part of its answer arrived. */
function problem(e, begun) {
  if (e.name === "AbortError") return;
  if (e.status === 401) return askKey();
  if (e.code === "context_length_exceeded" && !$("say").hidden)
    return notice("The context is full: it has" + e.message.replace(/^the context has/, "") + ".", "New conversation", newTalk);
  if (e.name !== "TypeError") return notice(e.message);
  notice(begun ? "The connection to the server was lost. The part that arrived is kept."
    : "The server does not answer. The text is kept: send it again when the server runs.");
}

function askKey() {
  $("key-of").hidden = false;
  notice($("key").value ? "The server refuses this API key." : "This server requires an API key.", "Enter the key", () => $("key").focus());
}
