/* SPDX-License-Identifier: MIT */
/* ---- the page ---- */

function tab(name) {
  for (const t of ["chat", "lens"]) {
    $(t).hidden = t !== name;
    if (t === name) $("go-" + t).setAttribute("aria-current", "page");
    else $("go-" + t).removeAttribute("aria-current");
  }
  $("say").hidden = name !== "chat";
  if (name === "chat") toEnd();
  else if (data.count) refresh();
}

function save() {
  const a = make("a", "", { download: "lens.ndjson" });
  a.href = URL.createObjectURL(new Blob([data.lines.join("\n") + "\n"], { type: "application/x-ndjson" }));
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}

function stop() {
  if (running) running.abort();
  if (!$("say").hidden) $("input").focus();
}

function clearKept() {
  kept.clear();
  kept.on = false; /* the page is not kept again when it closes */
  location.reload();
}

function onKey(e) {
  if (e.key === "Escape" && running) return stop();
  const typing = /^(TEXTAREA|SELECT)$/.test(e.target.tagName) || (e.target.tagName === "INPUT" && e.target.type !== "range");
  if (typing || e.ctrlKey || e.altKey || e.metaKey || $("lens").hidden || $("view").hidden || !keys[e.key]) return;
  keys[e.key]();
  e.preventDefault();
}

/* Enter sends, except on devices whose keyboard has no Shift+Enter. */
function onEnter(e) {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing || matchMedia("(pointer: coarse)").matches) return;
  e.preventDefault();
  if (!running) $("say").requestSubmit();
}

function lensExample() {
  $("prompt").value = hidden();
  $("n-new").value = "8";
  keep();
  $("ask").requestSubmit();
}

function onColours() {
  readColours();
  for (const strip of strips) if (strip) strip.painted = 0;
  if (data.count) draw();
}

function setKey() {
  sessionStorage.setItem("kvasir.key", $("key").value);
  meet("");
}

function listen() {
  const on = (id, event, run) => $(id).addEventListener(event, run);
  document.addEventListener("keydown", onKey);
  on("time", "input", () => go(Number($("time").value), now.strategy));
  on("back", "click", keys.PageUp);
  on("on", "click", keys.PageDown);
  on("layer", "change", () => { now.layer = Number($("layer").value); draw(); });
  on("open", "change", async () => { if ($("open").files.length) show(await $("open").files[0].text()); });
  on("save", "click", save);
  on("ask", "submit", look);
  on("say", "submit", say);
  on("stop", "click", stop);
  on("new-chat", "click", newTalk);
  on("show-prompt", "click", showPrompt);
  on("clear", "click", clearKept);
  on("try", "click", lensExample);
  on("key", "change", setKey);
  on("input", "keydown", onEnter);
  on("how", "change", drawExamples);
  on("settings", "input", showSettings);
  on("settings", "toggle", keepSoon);
  on("log", "scroll", onScroll);
  on("to-end", "click", toEnd);
  on("notice-close", "click", () => notice());
  for (const t of ["chat", "lens"])
    on("go-" + t, "click", () => { history.replaceState(null, "", t === "lens" ? "/lens" : "/"); tab(t); });
  document.addEventListener("input", keepSoon);
  window.addEventListener("resize", () => { if (data.count && !$("lens").hidden) refreshSoon(); });
  new ResizeObserver(() => { if (atEnd) toEnd(); }).observe($("log"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onColours);
}

/* Keeps all when the page closes, before its requests fail. */
function onLeave() {
  keep();
  keepLens();
  kept.on = false;
}

/* Restores what the last visit left, and reads the model's name. */
function begin() {
  const key = /[#&]key=([^&]*)/.exec(location.hash);
  if (key) {
    sessionStorage.setItem("kvasir.key", decodeURIComponent(key[1]));
    history.replaceState(null, "", location.pathname + location.search);
  }
  $("key").value = sessionStorage.getItem("kvasir.key") || "";
  $("key-of").hidden = !$("key").value;
  const values = restoreFields(), lens = kept.read("lens");
  restoreTalk();
  drawExamples();
  showSettings();
  if (!matchMedia("(pointer: coarse)").matches) $("input").focus(); /* elsewhere a keyboard would cover the page */
  window.addEventListener("pagehide", onLeave);
  window.addEventListener("pageshow", () => { kept.on = true; });
  meet(values.model);
  if (typeof lens === "string") show(lens, true);
}

function open() {
  const stored = $("data"), alone = stored || !served;
  listen();
  if (alone) kept.on = false;
  for (const id of ["nav", "ask", "model"]) $(id).hidden = alone;
  $("files").hidden = !!stored;
  tab(alone || location.pathname === "/lens" ? "lens" : "chat");
  if (stored) show(stored.textContent);
  if (new URLSearchParams(location.search).has("selftest")) return selftest();
  if (!alone) begin();
  if (stored) requestAnimationFrame(() => {
    $("foot").textContent = "opened in " + number(performance.now()) + " ms";
  });
}

open();
