"use strict";

// Markdown as nodes of the page, never as HTML. What a stretch of the source looks like is the caller's: `text(from, to)` gives
// its nodes, so that tokens keep their colours in it.

function node(name, parent, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  parent?.append(made);
  return made;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const RULE = /^ {0,3}([-*_])([ \t]*\1){2,}[ \t]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const LINK = /\[([^[\]\n]*)\]\((https?:\/\/[^\s()]+)\)/y;

function linesOf(source) {
  const lines = [];
  let at = 0;
  for (const line of source.split("\n")) {
    lines.push({ line, from: at, to: at + line.length });
    at += line.length + 1;
  }
  return lines;
}

class Inline {
  constructor(source, text) {
    this.source = source;
    this.text = text;
  }

  put(parent, from, to) {
    let plain = from;
    let at = from;
    while (at < to) {
      const end = this.marked(parent, at, to, () => this.flush(parent, plain, at));
      if (end) plain = at = end;
      else at += 1;
    }
    this.flush(parent, plain, to);
  }

  flush(parent, from, to) {
    if (from < to) parent.append(...this.text(from, to));
  }

  // Where the mark at this place ends, with its nodes made; 0 where there is none.
  marked(parent, at, to, before) {
    const sign = this.source[at];
    if (sign === "`") return this.code(parent, at, to, before);
    if (sign === "*" || sign === "_") return this.stressed(parent, at, to, before);
    if (sign === "[") return this.link(parent, at, to, before);
    return 0;
  }

  code(parent, at, to, before) {
    let start = at;
    while (this.source[start] === "`") start += 1;
    const ticks = this.source.slice(at, start);
    const end = this.source.indexOf(ticks, start);
    if (end < start + 1 || end + ticks.length > to) return 0;
    before();
    this.flush(node("code", parent), start, end);
    return end + ticks.length;
  }

  stressed(parent, at, to, before) {
    const sign = this.source[at];
    const marks = this.source.startsWith(sign + sign, at) ? sign + sign : sign;
    const start = at + marks.length;
    if (sign === "_" && /\w/.test(this.source[at - 1] ?? "")) return 0;
    if (start >= to || /\s/.test(this.source[start])) return 0;
    const end = this.source.indexOf(marks, start + 1);
    if (end < 0 || end + marks.length > to || /\s/.test(this.source[end - 1])) return 0;
    if (sign === "_" && /\w/.test(this.source[end + marks.length] ?? "")) return 0;
    before();
    this.put(node(marks.length > 1 ? "strong" : "em", parent), start, end);
    return end + marks.length;
  }

  link(parent, at, to, before) {
    LINK.lastIndex = at;
    const found = LINK.exec(this.source);
    if (!found || LINK.lastIndex > to) return 0;
    const end = LINK.lastIndex;
    before();
    const made = node("a", parent);
    made.href = found[2];
    made.target = "_blank";
    made.rel = "noopener noreferrer";
    this.put(made, at + 1, at + 1 + found[1].length);
    return end;
  }
}

class Blocks {
  constructor(source, text) {
    this.lines = linesOf(source);
    this.inline = new Inline(source, text);
    this.text = text;
    this.source = source;
    this.at = 0;
  }

  all() {
    const made = document.createDocumentFragment();
    while (this.at < this.lines.length) this.block(made);
    return made;
  }

  block(parent) {
    const { line } = this.lines[this.at];
    if (!line.trim()) this.at += 1;
    else if (FENCE.test(line)) this.fence(parent);
    else if (/^#{1,6}\s/.test(line)) this.heading(parent);
    else if (RULE.test(line)) {
      node("hr", parent);
      this.at += 1;
    } else if (/^ {0,3}>/.test(line)) this.quote(parent);
    else if (ITEM.test(line)) this.list(parent);
    else if (this.isTable()) this.table(parent);
    else this.paragraph(parent);
  }

  fence(parent) {
    const [, marks, kind] = FENCE.exec(this.lines[this.at].line);
    const close = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
    const first = this.at + 1;
    let end = first;
    while (end < this.lines.length && !close.test(this.lines[end].line)) end += 1;
    const box = node("div", parent, "code");
    node("span", box, "kind").textContent = kind;
    const copy = node("button", box, "copy");
    copy.type = "button";
    copy.textContent = "Copy";
    const code = node("code", node("pre", box));
    if (end > first) code.append(...this.text(this.lines[first].from, this.lines[end - 1].to));
    this.at = end + 1;
  }

  heading(parent) {
    const { line, from, to } = this.lines[this.at];
    const marks = /^(#+)\s+/.exec(line);
    this.at += 1;
    if (marks) this.inline.put(node(`h${Math.min(6, marks[1].length + 1)}`, parent), from + marks[0].length, to);
  }

  quote(parent) {
    const box = node("blockquote", parent);
    while (this.at < this.lines.length && /^ {0,3}>/.test(this.lines[this.at].line)) {
      const { line, from, to } = this.lines[this.at];
      this.inline.put(node("p", box), from + /^ {0,3}> ?/.exec(line)[0].length, to);
      this.at += 1;
    }
  }

  list(parent) {
    const first = ITEM.exec(this.lines[this.at].line)[2];
    const made = node(/\d/.test(first) ? "ol" : "ul", parent);
    if (/\d/.test(first)) made.start = parseInt(first, 10);
    while (this.at < this.lines.length) {
      const { line, from, to } = this.lines[this.at];
      const found = ITEM.exec(line);
      if (!found || RULE.test(line) || (!found[1] && /\d/.test(found[2]) !== /\d/.test(first))) return;
      const item = node("li", made);
      item.style.marginLeft = `${Math.min(6, found[1].length / 2)}em`;
      const end = this.continued(to);
      this.inline.put(item, from + found[0].length, end);
    }
  }

  // The end of an item that goes on in indented lines.
  continued(to) {
    this.at += 1;
    while (this.at < this.lines.length) {
      const { line } = this.lines[this.at];
      if (!/^\s+\S/.test(line) || ITEM.test(line) || FENCE.test(line)) return to;
      to = this.lines[this.at].to;
      this.at += 1;
    }
    return to;
  }

  isTable() {
    const next = this.lines[this.at + 1]?.line ?? "";
    return this.lines[this.at].line.includes("|") && next.includes("|") && DASHES.test(next);
  }

  table(parent) {
    const made = node("table", node("div", parent, "wide"));
    this.row(made, "th");
    this.at += 1;
    while (this.at < this.lines.length && this.lines[this.at].line.includes("|")) this.row(made, "td");
  }

  row(parent, kind) {
    const { line, from } = this.lines[this.at];
    const row = node("tr", parent);
    const inner = /^\s*\|?(.*?)\|?\s*$/.exec(line);
    let at = from + line.indexOf(inner[1]);
    for (const cell of inner[1].split("|")) {
      const start = at + (cell.length - cell.trimStart().length);
      this.inline.put(node(kind, row), start, start + cell.trim().length);
      at += cell.length + 1;
    }
    this.at += 1;
  }

  paragraph(parent) {
    const { from } = this.lines[this.at];
    let { to } = this.lines[this.at];
    this.at += 1;
    while (this.at < this.lines.length) {
      const { line } = this.lines[this.at];
      const other = FENCE.test(line) || /^#{1,6}\s/.test(line) || RULE.test(line) || /^ {0,3}>/.test(line);
      if (!line.trim() || other || ITEM.test(line)) break;
      to = this.lines[this.at].to;
      this.at += 1;
    }
    this.inline.put(node("p", parent), from, to);
  }
}

function markdown(source, text) {
  return new Blocks(source, text).all();
}
