/* SPDX-License-Identifier: MIT */
/* ---- self-test: ?selftest ---- */

function sample(n, steps) {
  const lines = [], bins = Math.min(n, 512), bin = Math.ceil(n / 512), used = Math.ceil(n / bin);
  const write = (j) => lines.push(JSON.stringify(j));
  write({ kind: "lens", version: 1, id: "x", model: "sample", n_prompt: n, layers: 4, kv_heads: 2, bin, drive: "full",
    strategies: ["full", "quest:budget=64", "streaming:budget=64"], dense: [[], [0], []] });
  for (let p = 0; p < n; p += 4096)
    write({ kind: "prompt", from: p, texts: Array.from({ length: Math.min(4096, n - p) }, (_, k) =>
      p + k === 7 ? "<img src=x id=bad>" : " word" + (p + k)) });
  write({ kind: "of a later version", x: 1 });
  for (let i = 0; i < steps; i++)
    for (let s = 1; s <= 2; s++) {
      const reads = String.fromCharCode(...Array.from({ length: used }, (_, b) => (b * 7 + i * 3 + s) % 5 ? 0 : 255));
      write({ kind: "step", i, s, id: i, text: " t" + i, attended: 64, missed: i === 5 ? 0.5 : 0.01 * s, worst: [2, 1, 0.25],
        reads: btoa(reads), missed_by: btoa(String.fromCharCode(0, 0, 9, 9, 9, 64, 3, 3)), missed_at: i === 5 ? [[n - 2, 0.3], [9, 0.1]] : [] });
    }
  write({ kind: "end", prompt_tokens: n, completion_tokens: steps });
  return lines.join("\n") + "\n";
}

/* Tests the signs of blanks, answers and kept data, which need no server. */
function testChat(is) {
  is(signs(" the\n") === "\u2423the\u21b5" && signs("\u200b\t") === "[U+200B]\u21e5" && signs("") === "\u2205", "blanks have signs");
  is(inked(" the") === " the" && inked("  ") === "\u2423\u2423" && inked(".\n") === ".\u21b5\n", "in running text, only tokens without ink");
  const turn = { who: "model", text: "", chat: true }, answer = new Answer(turn, 8), events = new Events(), view = showTurn(turn);
  const stream = ["x", "y\n```c\n<b>", "1</b>\n```\n", "z"].map((content) => "data: " + JSON.stringify({ choices: [{ delta: { content } }] }) + "\n\n").join("");
  for (let i = 0; i < stream.length; i += 7) events.feed(stream.slice(i, i + 7), (j) => answer.take(j));
  update(view);
  is(turn.text === "xy\n```c\n<b>1</b>\n```\nz" && answer.tokens === 4, "events are read in parts of any size");
  is(Array.from(view.body.children, (e) => e.tagName + ":" + e.textContent).join("|") === "DIV:xy|PRE:<b>1</b>|DIV:z", "code is a block, and never markup");
  turn.text = "short";
  update(view);
  is(view.body.children.length === 1 && view.body.textContent === "short", "a shorter text replaces a longer one");
  answer.take({ choices: [{ delta: { reasoning_content: "hm" } }] });
  update(view);
  is(turn.thought === "hm" && turn.text === "short" && !view.thinking.hidden && view.thought.textContent === "hm", "thinking is shown apart from the answer");
  let failed = null;
  try { events.feed('data: {"error":{"message":"no","code":"c"}}\n', (j) => answer.take(j)); } catch (e) { failed = e; }
  is(failed && failed.message === "no" && failed.code === "c" && !events.ended, "an error in a stream ends the answer");
  view.box.remove();
  talk = [{ who: "user", text: "why", chat: true }, { who: "model", text: "", chat: true, open: true }];
  $("input").value = "later";
  giveBack();
  is(talk.length === 0 && $("input").value === "why\nlater", "a question without an answer returns to the message");
  $("input").value = "";
}

function selftest() {
  kept.on = false;
  const out = [], is = (good, name) => out.push((good ? "ok " : "not ok ") + name);
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const classes = () => spans.filter((s) => s.className).length;
  tab("chat");
  testChat(is);
  tab("lens");
  show(sample(5000, 12));
  is(data.ended && data.count === 12 && data.texts.length === 5000, "a lens of 5,000 tokens and 12 steps is read");
  is(spans.length === MOST_SPANS && $("text").childElementCount === MOST_SPANS, "at most 2,000 spans of text");
  is(!document.getElementById("bad") && spans[7].textContent === "<img src=x id=bad>", "a token's text is never markup");
  is(classes() > 0 && classes() < spans.length, "some tokens are shaded");
  press("ArrowRight");
  is(now.step === 1 && $("time").value === "1" && $("steps").children[1].getAttribute("aria-selected") === "true", "right: the next step");
  press("ArrowLeft");
  press("ArrowLeft");
  is(now.step === 0, "left: stops at the first step");
  press("ArrowDown");
  is(now.strategy === 2 && $("row2").getAttribute("aria-selected") === "true" && $("rows").getAttribute("aria-activedescendant") === "row2",
    "down: the next strategy");
  press("PageDown");
  is(now.page === 1 && /^tokens 2,000 to 3,999/.test($("page").textContent), "PgDn: the next part of the text");
  press("m");
  is(now.step === 5 && now.page === 2 && spans[4998 - 4000].classList.contains("miss"), "m: the step that missed most, at its position");
  is($("missed").childElementCount === 2 && /30 %/.test($("missed").textContent), "missed tokens are listed with their share");
  is(/missed 50 %/.test($("row1").getAttribute("aria-label")), "numbers are in the labels, not only drawn");
  press("End");
  is(now.step === 11, "End: the last step");
  const pixels = strips[1].canvas.getContext("2d").getImageData(0, 0, strips[1].canvas.width, strips[1].canvas.height).data;
  is(new Set(new Uint32Array(pixels.buffer)).size > 2, "strips are drawn");
  const whole = sample(100, 3), cut = new Lens();
  cut.feed(whole.slice(0, 900), false);
  cut.feed(whole.slice(900, whole.length - 300), false);
  is(cut.count === 2 && !cut.ended && cut.texts.length === 100, "a truncated stream keeps its complete records");
  const again = new Lens();
  again.feed(data.lines.join("\n"), true);
  is(again.count === 12 && again.ended, "a saved lens can be opened");
  show("nonsense\n{\"kind\":1}\n");
  is(/has no lens/.test($("sum").textContent), "a file without a lens is reported");
  const began = performance.now();
  show(sample(32768, 64));
  const opened = performance.now();
  for (let i = 0; i < 50; i++) press(i % 25 === 24 ? "PageDown" : "ArrowRight");
  out.push("# 32,768 tokens, 64 steps: opened in " + number(opened - began, 1) + " ms, " +
    number((performance.now() - opened) / 50, 2) + " ms per key");
  is(spans.length === MOST_SPANS && now.step === 48, "32,768 tokens");
  out.push("1.." + out.filter((l) => !l.startsWith("#")).length);
  $("selftest").hidden = false;
  $("selftest").textContent = out.join("\n");
}

