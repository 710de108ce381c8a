"use strict";

// An answer as it comes: what the server sends, the tokens in the colours of their sources, and the figures above.

const $ = (id) => document.getElementById(id);

function title(token) {
  if (token.source === "before") return "from before it was stopped";
  if (token.source === "target") return "the target's own";
  if (token.source === "accepted") return "drafted, and the target's choice too";
  const wanted = JSON.stringify(token.preferred ?? "");
  return `drafted; the target preferred ${wanted} by ${(token.gap ?? 0).toFixed(3)} nats`;
}

function span(token, text) {
  const made = document.createElement("span");
  made.className = token.source;
  made.textContent = text;
  made.title = title(token);
  return made;
}

// What gives the nodes of a stretch of `source`: spans of tokens, where those say the source, else text.
function coloured(source, tokens) {
  const said = tokens.map((token) => token.text).join("");
  const shift = said.indexOf(source);
  if (!source || shift < 0) return (from, to) => [document.createTextNode(source.slice(from, to))];
  const ends = [];
  let end = -shift;
  for (const token of tokens) ends.push((end += token.text.length));
  return (from, to) => {
    const made = [];
    let k = ends.findIndex((place) => place > from);
    for (let at = from; k >= 0 && k < ends.length && at < to; k += 1) {
      const upto = Math.min(to, ends[k]);
      if (upto > at) made.push(span(tokens[k], source.slice(at, upto)));
      at = Math.max(at, upto);
    }
    return made;
  };
}

class Live {
  constructor() {
    this.tokens = this.rounds = this.drafted = this.first = 0;
    for (const id of ["speed", "accepted", "length", "against"]) $(id).textContent = "–";
  }

  add(tokens) {
    const now = performance.now();
    if (!this.first) this.first = now;
    else this.tokens += tokens.length;
    this.rounds += tokens.filter((token) => token.source === "target").length;
    this.drafted += tokens.filter((token) => token.source !== "target").length;
    const seconds = (now - this.first) / 1000;
    const all = this.rounds + this.drafted;
    if (seconds > 0.2) $("speed").textContent = `${(this.tokens / seconds).toFixed(1)} tokens/s`;
    if (this.rounds) $("length").textContent = (all / this.rounds).toFixed(2);
    if (all) $("accepted").textContent = `${((100 * this.drafted) / all).toFixed(0)} % of text`;
  }

  end(block) {
    $("speed").textContent = `${block.timings.tokens_per_second.toFixed(1)} tokens/s`;
    $("length").textContent = block.mean_length.toFixed(2);
    if (block.verified) $("accepted").textContent = `${block.accepted} of ${block.verified}`;
    $("against").textContent = block.times_plain ? `${block.times_plain.toFixed(2)}x` : "–";
  }
}

function headers() {
  const key = $("key").value;
  const told = { "content-type": "application/json" };
  return key ? { ...told, authorization: `Bearer ${key}` } : told;
}

class Refusal extends Error {}

// What a response that is no answer says, in a sentence.
async function refusal(response) {
  const body = await response.text();
  try {
    const said = JSON.parse(body).error.message;
    if (said) return new Refusal(String(said));
  } catch {
    // another program may stand between
  }
  return new Refusal(`the server answered ${response.status} ${response.statusText}`.trim());
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refusal("the answer ended before its end");
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: ?/, "");
      if (data === "[DONE]") return;
      if (part.startsWith("data:")) yield JSON.parse(data);
    }
  }
}

function request(messages) {
  const number = (id, least) => Math.max(least, Number($(id).value) || 0);
  return JSON.stringify({
    ...($("which").hidden ? {} : { model: $("name").value }),
    messages,
    stream: true,
    temperature: number("temperature", 0),
    ...($("most").value ? { max_tokens: number("most", 1) } : {}),
    speculation: { tokens: true, verify: $("rule").value, enabled: $("drafts").checked },
  });
}

// Ask for an answer and fill `turn` with what comes; `shown` is called when there is more. A Refusal says what went wrong.
async function receive(messages, turn, signal, shown) {
  const live = new Live();
  let thinking = false;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), signal, body: request(messages),
    });
    if (!response.ok) throw await refusal(response);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Refusal(String(chunk.error.message ?? "the answer failed"));
      const choice = chunk.choices?.[0];
      const delta = choice?.delta ?? {};
      turn.content += delta.content ?? "";
      turn.reasoning += delta.reasoning_content ?? "";
      if (delta.reasoning_content || delta.content) thinking = Boolean(delta.reasoning_content);
      if (choice?.finish_reason === "length") turn.cut = choice.reasoning_cut ? " inside its reasoning" : " ";
      if (chunk.tokens) {
        (thinking ? turn.thoughts : turn.tokens).push(...chunk.tokens);
        live.add(chunk.tokens);
      }
      if (chunk.speculation) live.end(chunk.speculation);
      shown();
    }
  } catch (error) {
    if (error.name === "AbortError") {
      turn.stopped = true;
      return;
    }
    if (error instanceof Refusal) throw error;
    throw new Refusal("the server cannot be reached, or ended the answer; try again");
  }
}
