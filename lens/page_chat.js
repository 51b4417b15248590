/* SPDX-License-Identifier: MIT */
/* ---- the conversation ---- */

let talk = []; /* {who, text, thought, note, detail, chat, open}: detail: all parameters; chat: sent with the next message; open: not complete */
let atEnd = true; /* the reader is at the end, which new text follows */
let lastTop = 0;

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
  atEnd = true;
  $("to-end").hidden = true;
}

/* Notes where the reader is. A log that became shorter does not count as scrolling away from the end. */
function onScroll() {
  const log = $("log"), near = log.scrollHeight - log.scrollTop - log.clientHeight < 32;
  if (near || log.scrollTop < lastTop) atEnd = near;
  lastTop = log.scrollTop;
  $("to-end").hidden = atEnd;
}

function setText(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length)); /* keeps a selection */
  else node.data = text;
}

/* Writes text with fenced code in blocks of its own. Only what changed is touched. */
function write(body, text) {
  const parts = text.split(/^```/m);
  parts.forEach((part, i) => {
    const e = body.children[i] || body.appendChild(i % 2 ? make("pre", "", { tabindex: "0" }) : make("div", ""));
    if (!e.firstChild) e.append(document.createTextNode(""));
    if (i % 2) part = part.replace(/^.*\n?/, ""); /* the language */
    else if (i) part = part.replace(/^\s*\n/, "");
    setText(e.firstChild, i + 1 < parts.length ? part.trimEnd() : part);
  });
  while (body.children.length > parts.length) body.lastChild.remove();
}

/* Adds a turn to the end of the log. Returns its elements. */
function showTurn(t) {
  const box = make("article", undefined, { class: "turn " + t.who }), body = make("div", undefined, { class: "said" });
  const view = { t, box, body, note: make("p", "", { class: "note dim" }) };
  view.thought = make("div", undefined, { class: "said" });
  view.thinking = make("details", undefined, { class: "thought dim" });
  view.thinking.append(make("summary", "Thinking"), view.thought);
  box.append(make("h2", { user: "You", model: "Model", prompt: "Prompt" }[t.who]), view.thinking, body, view.note);
  $("log").append(box);
  update(view);
  return view;
}

function update(view) {
  write(view.body, view.t.text);
  write(view.thought, view.t.thought || "");
  view.thinking.hidden = !view.t.thought;
  view.note.textContent = view.t.note || "";
  view.note.title = view.t.detail || "";
  if (atEnd) toEnd();
}

function drawTalk() {
  for (const old of $("log").querySelectorAll("article")) old.remove();
  for (const t of talk) showTurn(t);
  $("intro").hidden = talk.length > 0;
  toEnd();
}

/* Keeps the newest turns that fit. */
function keepTalk() {
  let from = 0;
  while (!kept.write("talk", talk.slice(from)) && from < talk.length) from += 1 + (talk.length >> 3);
}

let keeping = 0;
function keepSoon() {
  keeping = keeping || setTimeout(keep, 500);
}
function keep() {
  clearTimeout(keeping);
  keeping = 0;
  keepFields();
  keepTalk();
}

/* Restores the conversation. An answer that a reload interrupted keeps its text; without any, its question returns to
 * the message. */
function restoreTalk() {
  const list = kept.read("talk");
  talk = Array.isArray(list) ? list.filter((t) => t && typeof t.text === "string" && /^(user|model|prompt)$/.test(t.who)) : [];
  const last = talk[talk.length - 1];
  if (last && last.open) {
    delete last.open;
    last.note = "interrupted by a reload";
    if (!last.text && !last.thought) giveBack();
  }
  drawTalk();
}

/* Removes the last question and its empty answer. The question returns to the message. */
function giveBack() {
  const question = talk.splice(-2)[0], later = $("input").value;
  $("input").value = question.text + (later ? "\n" + later : "");
}

function newTalk() {
  const old = talk;
  if (running) running.abort();
  talk = [];
  drawTalk();
  keep();
  notice(old.length ? "The conversation was deleted." : "", "Undo", () => { talk = old; drawTalk(); keep(); notice(); });
  $("input").focus();
}

/* ---- answers ---- */

/* Reads the events of a stream, lines `data: JSON`. */
class Events {
  constructor() {
    this.rest = "";
    this.ended = false;
  }
  feed(text, take) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") this.ended = true;
      else if (line.startsWith("data: ")) take(JSON.parse(line.slice(6)));
    }
  }
}

/* An answer in progress: counts of its tokens and its turn. */
class Answer {
  constructor(turn, most) {
    Object.assign(this, { turn, most, tokens: 0, first: 0, finish: "", usage: null, kvasir: null, drawn: false });
  }
  take(j) {
    if (j.error) throw Object.assign(new Error(j.error.message), { code: j.error.code });
    const c = j.choices && j.choices[0], said = c && (c.delta ? c.delta.content : c.text);
    const thought = c && c.delta && c.delta.reasoning_content;
    if (j.model) setModel(j.model);
    if (c && c.finish_reason) this.finish = c.finish_reason;
    this.usage = j.usage || this.usage;
    this.kvasir = j.kvasir || this.kvasir;
    if (j.prompt_progress && !this.tokens) {
      const p = j.prompt_progress;
      busy("reading the prompt: " + number(p.processed) + " of " + number(p.total) + " tokens", p.processed, p.total);
    }
    if (!said && !thought) return;
    this.first = this.first || performance.now();
    this.tokens++;
    if (thought) this.turn.thought = (this.turn.thought || "") + thought;
    if (said) this.turn.text += said;
    busy((said ? "writing: " : "thinking: ") + this.speed() + number(this.tokens) + " of at most " + number(this.most) + " tokens", this.tokens, this.most);
  }
  speed() {
    const seconds = (performance.now() - this.first) / 1000;
    return this.tokens > 1 && seconds > 0 ? number((this.tokens - 1) / seconds, 1) + " tokens/s \u00b7 " : "";
  }
  /* Returns the costs of the answer. */
  note() {
    const size = (x) => x > 1e6 ? number(x / 1e6, 1) + " MB" : number(x / 1e3, 1) + " kB";
    const k = this.kvasir, tokens = this.usage ? this.usage.completion_tokens : this.tokens;
    const speed = k && k.decode_seconds > 0 && tokens > 1 ? number((tokens - 1) / k.decode_seconds, 1) + " tokens/s \u00b7 " : this.speed();
    let text = speed + number(tokens) + (tokens === 1 ? " token" : " tokens");
    if (this.finish === "length") text += ", the maximum";
    if (k && k.attended !== undefined) text += " \u00b7 attended " + number(k.attended) + " of " + number(k.visible);
    if (k) text += " \u00b7 KV " + size(k.kv_bytes + (k.index_bytes || 0));
    if (k && k.prefix_tokens) text += " \u00b7 prefix " + number(k.prefix_tokens) + " tokens";
    if (this.usage && context) text += " \u00b7 context " + number(this.usage.total_tokens) + " of " + number(context);
    return k ? text + " \u00b7 " + /^\S*( budget=\S+)?/.exec(k.attn)[0] : text;
  }
}

function requestOf(text, asChat) {
  const body = { max_tokens: Number($("most").value) || 256, attn: $("attn").value || "full", stream: true,
    stream_options: { include_usage: true }, return_progress: true };
  if ($("temp").value) body.temperature = Number($("temp").value);
  if ($("budget").value) body.budget = $("budget").value;
  if (!asChat) return Object.assign(body, { prompt: text });
  body.messages = talk.filter((t) => t.chat).map((t) => ({ role: t.who === "user" ? "user" : "assistant", content: t.text }));
  body.messages.push({ role: "user", content: text });
  return body;
}

async function say(event) {
  event.preventDefault();
  const text = $("input").value, asChat = $("how").value === "chat";
  if (running || !text) return;
  const body = requestOf(text, asChat), turn = { who: "model", text: "", chat: asChat, open: true };
  const answer = new Answer(turn, body.max_tokens), events = new Events();
  talk.push({ who: "user", text, chat: asChat }, turn);
  const mine = talk;
  $("intro").hidden = true;
  atEnd = true;
  showTurn(talk[talk.length - 2]);
  const view = showTurn(turn);
  $("input").value = "";
  $("log").setAttribute("aria-busy", "true"); /* screen readers read the complete answer */
  keep();
  let failed = null;
  const draw = () => { answer.drawn = false; update(view); };
  try {
    await post(asChat ? "/v1/chat/completions" : "/v1/completions", body, (part) => {
      events.feed(part, (j) => answer.take(j));
      if (!answer.drawn) answer.drawn = true, requestAnimationFrame(draw);
      keepSoon();
    });
    if (!events.ended) throw new TypeError("incomplete");
  } catch (e) {
    failed = e;
  }
  $("log").removeAttribute("aria-busy");
  delete turn.open;
  if (answer.kvasir) turn.detail = answer.kvasir.attn;
  turn.note = !failed ? answer.note() : failed.name === "AbortError" ? "stopped" : "incomplete: an error ended the answer";
  update(view);
  if (failed && talk === mine) {
    const empty = !turn.text && !turn.thought;
    if (empty) giveBack(), drawTalk();
    problem(failed, !empty);
    if (/no (default )?chat template/.test(failed.message)) asText();
  }
  keep();
}

/* Selects the form of the prompt: chat or text. */
function setForm(form) {
  $("how").value = form;
  drawExamples();
  showSettings();
}

/* Selects the form of models without a chat template. */
function asText() {
  setForm("text");
  notice("This model has no chat template. It continues texts: send the message again.");
}

/* Shows the conversation, with the message that is being written, as the prompt of the model. */
async function showPrompt() {
  const messages = $("input").value || talk.some((t) => t.chat) ? requestOf($("input").value, true).messages : [];
  const ask = async (path, body) => {
    let all = "";
    await post(path, body, (part) => { all += part; });
    return JSON.parse(all);
  };
  if (!$("input").value) messages.pop();
  if (running || !messages.length) return notice(running ? "" : "Write a message first.");
  try {
    const { tokens } = await ask("/tokenize", { messages });
    talk.push({ who: "prompt", text: (await ask("/detokenize", { tokens })).prompt, note: number(tokens.length) + " tokens" });
    $("intro").hidden = true;
    atEnd = true;
    showTurn(talk[talk.length - 1]);
    keep();
  } catch (e) {
    problem(e, false);
  }
}

/* ---- the model ---- */

let context = 0; /* tokens; 0: not known */

function setModel(name) {
  if ($("model").textContent === name) return;
  $("model").textContent = $("model").title = name;
  document.title = name + " \u00b7 Kvasir";
}

/* Reads the model's name and context. A model other than `known` gets the form of the prompt that suits it: a chat if
 * it has a template. */
async function meet(known) {
  try {
    const { data: [m] } = await (await check(await fetch("/v1/models", { headers: headers() }))).json();
    setModel(m.id);
    context = m.max_model_len || 0;
    const { tool_calls: calls, thinking } = m.kvasir || {};
    $("supports").textContent = (calls ? "tool calls: " + calls : "no tool calls") + (thinking ? ", thinking" : "");
    if ($("notice-do").textContent === "Enter the key") notice();
    if (m.id === known) return;
    const body = JSON.stringify({ messages: [{ role: "user", content: "a" }] });
    const { status } = await fetch("/tokenize", { method: "POST", headers: headers(), body });
    setForm(status === 400 ? "text" : "chat");
  } catch (e) {
    problem(e, false);
  }
}

/* ---- examples ---- */

/* Returns a text of about 2,000 tokens that hides a number. Its end is a question in a chat, and a text to continue. */
function hidden() {
  const filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";
  return filler.repeat(18) + "The pass key is 68421. Remember it. 68421 is the pass key.\n" + filler.repeat(43) +
    "Read the text above and give the pass key as a number. The pass key is";
}

function drawExamples() {
  const asChat = $("how").value === "chat";
  const list = asChat ? ["Name three fruits.", "Why is the sky blue?"] : ["It was a dark night, and the"];
  const button = (label, fields) => {
    const b = make("button", label, { type: "button" });
    b.addEventListener("click", () => {
      for (const id in fields) $(id).value = fields[id];
      $("input").focus();
      showSettings();
    });
    return b;
  };
  $("examples").replaceChildren(...list.map((text) => button(text, { input: text })),
    button("Find a number in 2,000 tokens with fier", { input: hidden(), attn: "fier", budget: "256", temp: "0" }));
}

/* Shows the settings in one line. */
function showSettings() {
  const budget = $("budget").value ? ", budget " + $("budget").value : "";
  $("settings-of").textContent = ($("how").value === "chat" ? "chat, " : "text, ") + ($("attn").value || "full") + budget + ", " +
    ($("most").value || "256") + " tokens, " + ($("temp").value ? "temperature " + $("temp").value : "the model's temperature");
}
