// Markdown inside a line, as nodes: emphasis, code, links.  HTML stays text.
//
// `Ends` remembers the place of the next closing mark.  Each search goes over the text once, so text
// full of opening marks takes no longer than other text.

import { make } from "../dom.js";

const DEEPEST = 8;
const LONGEST_URL = 2048;
const SPECIAL = /[\\`*_~[!<\n]|https?:\/\//g;
const ESCAPED = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const SPACE = /\s/;
const SCHEMES = ["http:", "https:", "mailto:"];

class Ends {
  constructor(text) {
    this.text = text;
    this.known = new Map();
  }

  // Return the first place at or after `from` where `mark` closes; -1 if there is none.
  next(mark, from, ends = () => true) {
    const known = this.known.get(mark);
    if (known !== undefined && (known === -1 || known >= from)) return known;
    let place = this.text.indexOf(mark, from);
    while (place !== -1 && !ends(place)) place = this.text.indexOf(mark, place + 1);
    this.known.set(mark, place);
    return place;
  }
}

export function inline(text, into, depth = 0) {
  if (depth > DEEPEST) { into.append(text); return; }
  const ends = new Ends(text);
  let plain = "", place = 0;
  const flush = () => { if (plain) into.append(plain); plain = ""; };
  while (place < text.length) {
    SPECIAL.lastIndex = place;
    const found = SPECIAL.exec(text);
    if (!found) break;
    plain += text.slice(place, found.index);
    place = found.index;
    const read = READERS[found[0]](text, place, ends);
    if (!read) {
      const run = /^(?:\*+|_+|~+|`+|.)/s.exec(text.slice(place, place + 64))[0];
      plain += run;
      place += run.length;
      continue;
    }
    flush();
    place = read.end;
    if (read.node) into.append(read.node);
    else if (read.text !== undefined) plain += read.text;
    if (read.inner !== undefined) inline(read.inner, read.node, depth + 1);
    if (read.after) into.append(...read.after);
  }
  plain += text.slice(place);
  flush();
}

function emphasis(mark, tag) {
  return (text, place, ends) => {
    const begin = place + mark.length, before = text[place - 1] || " ";
    if (!text[begin] || SPACE.test(text[begin])) return null;
    if (mark[0] === "_" && WORD.test(before)) return null;
    const end = ends.next(mark, begin + 1, (at) => {
      if (SPACE.test(text[at - 1])) return false;
      if (text[at + mark.length] === mark[0]) return false;  // the last of a run ends the outer one
      if (mark.length === 1 && text[at - 1] === mark) return false;
      return mark[0] !== "_" || !WORD.test(text[at + mark.length] || " ");
    });
    if (end === -1) return null;
    return { node: make(tag), inner: text.slice(begin, end), end: end + mark.length };
  };
}

function stars(mark, single) {
  const double = emphasis(mark + mark, "strong");
  return (text, place, ends) => text[place + 1] === mark ? double(text, place, ends) : single(text, place, ends);
}

const struck = emphasis("~~", "del");

function code(text, place, ends) {
  const ticks = /^`+/.exec(text.slice(place, place + 64))[0];
  const alone = (at) => text[at - 1] !== "`" && text[at + ticks.length] !== "`";
  const end = ends.next(ticks, place + ticks.length, alone);
  if (end === -1) return null;
  let inner = text.slice(place + ticks.length, end).replaceAll("\n", " ");
  if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1);
  return { node: make("code", {}, inner), end: end + ticks.length };
}

function escape(text, place) {
  const next = text[place + 1];
  if (next === "\n") return { node: make("br"), end: place + 2 };
  return next && ESCAPED.test(next) ? { text: next, end: place + 2 } : null;
}

// The address of a link that may be followed; no other leaves this page.
function safe(address) {
  try {
    const url = new URL(address);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function anchor(href, properties = {}) {
  return make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", ...properties });
}

// [label](address "title"): where a label leads stands behind it.
function link(text, place, ends) {
  const close = ends.next("](", place);
  if (close === -1 || text.lastIndexOf("[", close) > place) return null;
  const begin = close + 2;
  let end = begin, open = 1;
  for (; end < text.length && end - begin < LONGEST_URL; end += 1) {
    if (text[end] === "(") open += 1;
    if (text[end] === ")" && (open -= 1) === 0) break;
    if (text[end] === "\n" || open > DEEPEST) return null;
  }
  if (open) return null;
  const [address] = text.slice(begin, end).trim().split(/\s/);
  const href = safe(address.replace(/^<|>$/g, ""));
  if (!href) return null;
  const label = text.slice(place + 1, close);
  const shown = address === label ? [] : [make("span", { className: "address" }, ` (${short(href)})`)];
  return { node: anchor(href, { title: href }), inner: label || href, end: end + 1, after: shown };
}

function short(address) {
  return address.length > 80 ? address.slice(0, 77) + "…" : address;
}

// A picture is not loaded: it would tell its server that somebody reads this.
function picture(text, place, ends) {
  return text[place + 1] === "[" ? link(text, place + 1, ends) : null;
}

function between(text, place) {
  const found = /^<([a-z][a-z+.-]*:[^\s<>]+)>/i.exec(text.slice(place, place + LONGEST_URL));
  const href = found && safe(found[1]);
  return href ? { node: anchor(href, { textContent: found[1] }), end: place + found[0].length } : null;
}

function bare(text, place) {
  let found = /^[^\s<>"'`|\\^{}]+/.exec(text.slice(place, place + LONGEST_URL))[0];
  found = found.replace(/[.,;:!?*_~]+$/, "");
  while (found.endsWith(")") && found.split("(").length < found.split(")").length) found = found.slice(0, -1);
  const href = safe(found);
  if (!href || (place && WORD.test(text[place - 1]))) return null;
  return { node: anchor(href, { textContent: found }), end: place + found.length };
}

const READERS = {
  "\\": escape,
  "`": code,
  "*": stars("*", emphasis("*", "em")),
  "_": stars("_", emphasis("_", "em")),
  "~": (text, place, ends) => text[place + 1] === "~" ? struck(text, place, ends) : null,
  "[": link,
  "!": picture,
  "<": between,
  "\n": (text, place) => ({ node: make("br"), end: place + 1 }),
  "http://": bare,
  "https://": bare,
};
