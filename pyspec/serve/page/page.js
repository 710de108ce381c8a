"use strict";

// One page to chat in: each token stands in a span of its source, and says on hover how it came about.

const $ = (id) => document.getElementById(id);
const messages = [];
let running = null;

function add(kind, text) {
  const turn = document.createElement("div");
  turn.className = `turn ${kind}`;
  turn.textContent = text;
  $("talk").append(turn);
  turn.scrollIntoView({ block: "end" });
  return turn;
}

function title(token) {
  if (token.source === "target") return "the target's own";
  if (token.source === "accepted") return "drafted, and the target's choice too";
  const wanted = JSON.stringify(token.preferred ?? "");
  return `drafted; the target preferred ${wanted} by ${token.gap.toFixed(3)} nats`;
}

function show(turn, tokens, thought) {
  const main = $("talk");
  const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
  for (const token of tokens) {
    const span = document.createElement("span");
    span.className = thought ? `${token.source} thought` : token.source;
    span.textContent = token.text;
    span.title = title(token);
    turn.append(span);
  }
  if (atEnd) main.scrollTop = main.scrollHeight;
}

class Live {
  constructor() {
    this.tokens = 0;
    this.rounds = 0;
    this.drafted = 0;
    this.first = 0;
  }

  add(tokens) {
    const now = performance.now();
    if (!this.first) this.first = now;
    else this.tokens += tokens.length;
    this.rounds += tokens.filter((token) => token.source === "target").length;
    this.drafted += tokens.filter((token) => token.source !== "target").length;
    const seconds = (now - this.first) / 1000;
    const all = this.rounds + this.drafted;
    if (seconds > 0.2) $("speed").textContent = `${(this.tokens / seconds).toFixed(1)} tok/s`;
    if (this.rounds) $("length").textContent = (all / this.rounds).toFixed(2);
    if (all) $("accepted").textContent = `${((100 * this.drafted) / all).toFixed(0)} % of text`;
  }

  end(block) {
    $("speed").textContent = `${block.timings.tokens_per_second.toFixed(1)} tok/s`;
    $("length").textContent = block.mean_length.toFixed(2);
    if (block.verified) {
      $("accepted").textContent = `${block.accepted} of ${block.verified}`;
    }
    const against = block.times_plain;
    $("against").textContent = against ? `${against.toFixed(2)}x` : "–";
  }
}

function headers() {
  const key = $("key").value;
  const told = { "content-type": "application/json" };
  return key ? { ...told, authorization: `Bearer ${key}` } : told;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function ask(text) {
  add("user", text);
  messages.push({ role: "user", content: text });
  const turn = add("assistant", "");
  const live = new Live();
  let answer = "";
  let thoughts = "";
  let thinking = false;
  let cut = false;
  let reason = null;
  running = new AbortController();
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: running.signal,
      body: JSON.stringify({
        messages,
        stream: true,
        temperature: Number($("temperature").value),
        max_tokens: Number($("most").value),
        speculation: { tokens: true, verify: $("rule").value, enabled: $("drafts").checked },
      }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      const delta = choice?.delta ?? {};
      answer += delta.content ?? "";
      thoughts += delta.reasoning_content ?? "";
      if (delta.reasoning_content || delta.content) thinking = Boolean(delta.reasoning_content);
      reason = choice?.finish_reason ?? reason;
      cut = choice?.reasoning_cut ?? cut;
      if (chunk.tokens) {
        show(turn, chunk.tokens, thinking);
        live.add(chunk.tokens);
      }
      if (chunk.speculation) live.end(chunk.speculation);
    }
    const where = cut ? " inside its reasoning" : "";
    if (reason === "length") add("note", `cut${where}: the limit of tokens was reached`);
  } catch (error) {
    if (error.name !== "AbortError") add("error", error.message);
  } finally {
    running = null;
    turn.dataset.done = "yes";
    const said = { role: "assistant", content: answer };
    messages.push(thoughts ? { ...said, reasoning_content: thoughts } : said);
  }
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  busy(true);
  await ask(text);
  busy(false);
  $("text").focus();
});

$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});

$("stop").addEventListener("click", () => running?.abort());

$("clear").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  $("talk").replaceChildren();
});

fetch("/v1/models", { headers: headers() })
  .then((response) => (response.ok ? response.json() : null))
  .then((found) => {
    if (!found) return;
    const model = found.data[0];
    $("model").textContent = `${model.id}, draft ${model.meta.draft}`;
    document.title = model.id;
  });
