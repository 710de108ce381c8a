"use strict";

// One page to chat in. A turn is what was asked and what was answered; all of them stay over a reload.

const KEPT = "pyspec.chat";
const SETTINGS = ["name", "system", "temperature", "most", "rule"];
let turns = [];
let running = null;

const fresh = (question) => ({
  question, content: "", reasoning: "", tokens: [], thoughts: [], cut: "", stopped: false, error: "",
});
const isAnswered = (turn) => Boolean(turn.content || turn.reasoning);

// What the model is told: turns that failed, or were stopped before anything came, are none of it.
function history(upto) {
  const system = $("system").value.trim();
  const said = system ? [{ role: "system", content: system }] : [];
  for (const turn of turns.slice(0, upto).filter(isAnswered)) {
    const answer = { role: "assistant", content: turn.content };
    if (turn.reasoning) answer.reasoning_content = turn.reasoning;
    said.push({ role: "user", content: turn.question }, answer);
  }
  return said;
}

// -- kept over a reload -----------------------------------------------------------------------------------------------

function keep() {
  const settings = Object.fromEntries(SETTINGS.map((id) => [id, $(id).value]));
  const bare = () => turns.map((turn) => ({ ...turn, tokens: [], thoughts: [] }));
  for (const kept of [() => turns, bare]) {
    try {
      localStorage.setItem(KEPT, JSON.stringify({ settings, turns: kept() }));
      return;
    } catch {
      // there is little room; colours go first
    }
  }
}

function restore() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT));
    $("name").add(new Option(kept?.settings?.name ?? "")); // until the server tells which there are
    for (const id of SETTINGS) if (typeof kept?.settings?.[id] === "string") $(id).value = kept.settings[id];
    turns = (kept?.turns ?? []).map((turn) => ({ ...fresh(""), ...turn }));
  } catch {
    turns = [];
  }
}

// -- what is shown ----------------------------------------------------------------------------------------------------

function button(parent, name, act) {
  const made = node("button", parent, "act");
  made.type = "button";
  made.textContent = name;
  made.addEventListener("click", act);
  return made;
}

async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
    from.textContent = "Copied";
  } catch {
    from.textContent = "Not allowed";
  }
  setTimeout(() => (from.textContent = "Copy"), 1500);
}

// A turn on the page: its question, its answer and what can be done with them.
class TurnView {
  constructor(turn) {
    this.turn = turn;
    this.box = node("section", $("talk"));
    this.question = node("div", this.box, "turn user");
    this.asks = node("p", this.box, "acts mine");
    this.answer = node("div", this.box, "turn assistant");
    this.folded = node("details", this.answer, "thoughts");
    node("summary", this.folded).textContent = "Reasoning";
    this.thoughts = node("div", this.folded);
    this.text = node("div", this.answer, "text");
    this.notes = node("div", this.box);
    this.acts = node("p", this.box, "acts");
    button(this.asks, "Edit", () => this.edit());
    this.copied = button(this.acts, "Copy", () => copy(this.turn.content, this.copied));
    this.anew = button(this.acts, "Regenerate", () => again(this.turn, this.turn.question));
    this.onward = button(this.acts, "Continue", () => goOn(this.turn, this));
    this.answer.addEventListener("click", (event) => {
      if (event.target.className !== "copy") return;
      copy(event.target.parentElement.querySelector("pre").textContent, event.target);
    });
    this.question.textContent = turn.question;
    this.due = false;
    this.draw(true);
  }

  // Draw what has come, once a frame.
  more() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      if (this.due) this.draw(false);
    });
  }

  draw(done) {
    this.due = false;
    const { turn } = this;
    const main = $("talk");
    const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
    // what waits for a stop string is not content yet; its tokens are there
    const said = done ? turn.content : turn.tokens.map((token) => token.text).join("") || turn.content;
    const thought = turn.reasoning;
    this.text.replaceChildren(markdown(said, coloured(said, turn.tokens)));
    this.thoughts.replaceChildren(...coloured(thought, turn.thoughts)(0, thought.length));
    this.folded.hidden = !thought;
    if (!done) this.folded.open = !turn.content;
    else if (turn.content) this.folded.open = false;
    this.acts.hidden = this.asks.hidden = !done;
    this.copied.hidden = !turn.content;
    this.anew.textContent = turn.error ? "Try again" : "Regenerate";
    this.notes.replaceChildren();
    // reasoning that was cut has no place in what is sent back
    this.onward.hidden = !turn.content || !(turn.cut === " " || turn.stopped || turn.error) || turns.at(-1) !== turn;
    const where = turn.cut.trimEnd();
    if (done && turn.stopped) node("p", this.notes, "note").textContent = "stopped";
    if (turn.cut) node("p", this.notes, "note").textContent = `cut${where}: the limit of tokens was reached`;
    if (turn.error) node("p", this.notes, "error").textContent = turn.error;
    if (done) this.answer.dataset.done = "yes";
    if (atEnd) main.scrollTop = main.scrollHeight;
  }

  edit() {
    if (running) return;
    const field = document.createElement("textarea");
    field.value = this.turn.question;
    field.rows = Math.min(10, field.value.split("\n").length + 1);
    field.setAttribute("aria-label", "Edited message");
    this.question.replaceChildren(field);
    this.asks.replaceChildren();
    button(this.asks, "Send", () => again(this.turn, field.value.trim()));
    button(this.asks, "Cancel", showAll);
    field.focus();
  }
}

function showAll() {
  $("talk").replaceChildren();
  const views = turns.map((turn) => new TurnView(turn));
  $("talk").scrollTop = $("talk").scrollHeight;
  return views.at(-1);
}

// -- what is done -----------------------------------------------------------------------------------------------------

async function ask(question) {
  const turn = fresh(question);
  const messages = [...history(turns.length), { role: "user", content: question }];
  turns.push(turn);
  await fill(turn, messages, showAll());
}

// Go on with an answer that was cut or stopped: the server continues a last message of its own.
async function goOn(turn, view) {
  if (running) return;
  Object.assign(turn, { cut: "", stopped: false, error: "" });
  const said = turn.tokens.map((token) => token.text).join("");
  if (said !== turn.content) turn.tokens = [{ text: turn.content, source: "before" }];
  await fill(turn, history(turns.length), view);
}

async function fill(turn, messages, view) {
  delete view.answer.dataset.done;
  view.box.scrollIntoView({ block: "end" });
  busy((running = new AbortController()));
  try {
    await receive(messages, turn, running.signal, () => view.more());
  } catch (error) {
    turn.error = error.message;
  } finally {
    running = null;
    if (turns.includes(turn)) {
      view.draw(true);
      keep();
    }
    busy(null);
  }
}

// Ask a turn's question anew, or another one in its place; what came behind it goes.
async function again(turn, question) {
  const at = turns.indexOf(turn);
  if (running || at < 0 || !question) return;
  turns.length = at;
  showAll();
  await ask(question);
}

// Ask which models there are; of several, one is chosen.
async function look() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (response.ok) offer((await response.json()).data);
  } catch {
    // the first message tells what is wrong
  }
}

function offer(models) {
  const chosen = $("name").value;
  $("name").replaceChildren(...models.map((model) => new Option(model.id)));
  if (models.some((model) => model.id === chosen)) $("name").value = chosen;
  $("which").hidden = models.length < 2;
  const model = models.find((each) => each.id === $("name").value);
  // of one that is not loaded nothing is known
  $("model").textContent = model.meta ? `${model.id}, draft ${model.meta.draft}` : model.id;
  document.title = model.id;
}

function busy(is) {
  $("send").hidden = Boolean(is);
  $("stop").hidden = !is;
  document.body.classList.toggle("busy", Boolean(is));
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  await ask(text);
  $("text").focus();
});

$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});

$("stop").addEventListener("click", () => running?.abort());
for (const id of SETTINGS) $(id).addEventListener("change", keep);
for (const id of ["name", "key"]) $(id).addEventListener("change", look);

$("clear").addEventListener("click", (event) => {
  event.preventDefault(); // it stands in the line that folds the settings
  running?.abort();
  turns = [];
  showAll();
  keep();
});

restore();
showAll();

look();
