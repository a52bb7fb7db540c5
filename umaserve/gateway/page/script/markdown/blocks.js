// Markdown as blocks: headings, lists, tables, quotes, code, paragraphs.

const DEEPEST = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: +|$)/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const BLANK = /^\s*$/;

const TAB = 4;

// Columns before the first word.
function indentOf(line) {
  let width = 0;
  for (let at = 0; line[at] === " " || line[at] === "\t"; at += 1) width += line[at] === "\t" ? TAB : 1;
  return width;
}

// The line less so many columns of indentation; later tabs stay, as a Makefile needs them.
function without(line, columns) {
  let at = 0;
  for (let width = 0; width < columns && (line[at] === " " || line[at] === "\t"); at += 1) width += line[at] === "\t" ? TAB : 1;
  return line.slice(at);
}

// The blocks of a text, each with the source that it is made of.
export function blocks(text, depth = 0) {
  const lines = text.replaceAll("\r\n", "\n").split("\n"), found = [];
  for (let at = 0; at < lines.length;) {
    if (BLANK.test(lines[at])) { at += 1; continue; }
    const block = (depth < DEEPEST && begun(lines, at, depth)) || paragraph(lines, at);
    block.source = lines.slice(at, block.end).join("\n");
    found.push(block);
    at = block.end;
  }
  return found;
}

function begun(lines, at, depth) {
  for (const read of [fence, heading, rule, quote, table, list]) {
    const block = read(lines, at, depth);
    if (block) return block;
  }
  return null;
}

// A block without an end goes to the end of the text: more of it may come.
function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, mark, words] = open, indent = indentOf(lines[at]);
  const closes = (line) => indentOf(line) < 4 && line.trim().length >= mark.length && !line.trim().replaceAll(mark[0], "");
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).map((line) => without(line, indent)).join("\n");
  return { kind: "code", language: words.trim().split(/\s/)[0], text, end: Math.min(end + 1, lines.length) };
}

function heading(lines, at) {
  const mark = HEADING.exec(lines[at]);
  if (!mark) return null;
  const text = lines[at].slice(mark[0].length).trim().replace(/(?: |^)#+$/, "");
  return { kind: "heading", level: mark[1].length, text, end: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { kind: "rule", end: at + 1 } : null;
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  if (end === at) return null;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, "")).join("\n");
  return { kind: "quote", blocks: blocks(inner, depth + 1), end };
}

// The cells of a line; a bar behind a backslash, or in code, parts none.
function cells(line) {
  const found = [];
  let cell = "", inCode = false;
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") { cell += "|"; at += 1; continue; }
    if (text[at] === "`") inCode = !inCode && text.indexOf("`", at + 1) !== -1;
    if (text[at] === "|" && !inCode) { found.push(cell.trim()); cell = ""; } else cell += text[at];
  }
  if (cell.trim()) found.push(cell.trim());
  return found;
}

function table(lines, at) {
  if (!lines[at].includes("|") || !/^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] || "")) return null;
  const head = cells(lines[at]), marks = cells(lines[at + 1]);
  if (head.length !== marks.length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  const sides = marks.map((mark) => mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left");
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && !BLANK.test(lines[end])) end += 1;
  const rows = lines.slice(at + 2, end).map(cells).map((row) => head.map((_, i) => row[i] || ""));
  return { kind: "table", head, sides, rows, end };
}

const isNumber = (mark) => mark !== undefined && /\d/.test(mark);

// Models indent the contents of an item by two, three or four spaces: two are enough here.
function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const base = first[1].length, numbered = isNumber(first[2]), items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end], mark = ITEM.exec(line), indent = indentOf(line);
    if (BLANK.test(line)) {
      if (items.length) items.at(-1).push("");
    } else if (mark && indent < base + 2 && !RULE.test(line)) {
      if (isNumber(mark[2]) !== numbered || indent < base) break;
      items.push([line.slice(mark[0].length)]);
      items.at(-1).width = mark[0].length;
    } else if (indent >= base + 2 || (lines[end - 1].trim() && !startsBlock(lines, end))) {
      items.at(-1).push(without(line, items.at(-1).width));
    } else break;
  }
  while (BLANK.test(lines[end - 1])) end -= 1;
  const inner = items.map((item) => blocks(item.join("\n"), depth + 1));
  return { kind: "list", numbered, start: parseInt(first[2], 10), items: inner, end };
}

function startsBlock(lines, at) {
  const line = lines[at], item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)
    || (item && (!isNumber(item[2]) || parseInt(item[2], 10) === 1) && line.length > item[0].length);
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !BLANK.test(lines[end]) && !startsBlock(lines, end) && !table(lines, end)) end += 1;
  return { kind: "paragraph", text: lines.slice(at, end).map((line) => line.trim()).join("\n"), end };
}
