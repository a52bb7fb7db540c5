// What stands at the cursor, asked of the daemon. Nothing here knows VS Code.

import { type Daemon, type DaemonEvent, type Model, contextOf } from "./daemon.ts";
import { APP } from "./figures.ts";

// Characters around the cursor that the model sees.
const BEFORE = 8192;
const AFTER = 2048;
// The beginning moves in steps this long. While somebody types, the prompt begins as it did, and the
// daemon has most of it in its cache.
const STEP = 4096;

export interface Asking {
  session: string;
  priority: string;
  maxTokens: number;
}

/** The texts before and behind the cursor, as far as the model is to see them. */
export function around(text: string, cursor: number): { before: string; after: string } {
  let start = Math.ceil(Math.max(0, cursor - BEFORE) / STEP) * STEP;
  if (start > 0) {
    const line = text.indexOf("\n", start) + 1;
    if (line > 0 && line < cursor) start = line;
  }
  return { before: text.slice(start, cursor), after: text.slice(cursor, cursor + AFTER) };
}

/** What goes between the two texts; empty where the model has nothing to say, or makes no text. */
export async function complete(
  daemon: Daemon,
  place: { before: string; after: string },
  asking: Asking,
  signal: AbortSignal,
  begun: (event: DaemonEvent) => void = () => undefined,
): Promise<string> {
  const model = (await daemon.ask({ type: "info" }, signal)).info?.model;
  if (!model?.generates) return "";
  const context = contextOf(model);
  const most = Math.min(asking.maxTokens, Math.floor(context / 2));
  const tokens = await prompt(daemon, model, place, context - most, signal);
  if (tokens.length === 0) return "";
  // where text follows on the line, a suggestion of several lines would tear it
  const stop = /\S/.test(place.after.split("\n", 1)[0] ?? "") ? "\n" : "\n\n";
  const request = {
    tokens, stop, temperature: 0, begin: true, app: APP,
    max_tokens: most, session: asking.session, priority: asking.priority,
  };
  let text = "";
  for await (const event of daemon.generate(request, signal)) {
    if (event.event === "begin") begun(event);
    else if (event.event === "token") text += event.text ?? "";
  }
  return text.trimEnd();
}

/**
 * Token ids: prefix, suffix and the gap's own tokens between them, as `llama-server` orders them.
 * A model that has none of these tokens goes on with the text before the cursor.
 */
async function prompt(
  daemon: Daemon,
  model: Model,
  place: { before: string; after: string },
  room: number,
  signal: AbortSignal,
): Promise<number[]> {
  const { prefix, suffix, middle, bos } = model.gap;
  const ids = async (text: string, start: boolean): Promise<number[]> => {
    if (!text) return [];
    const asked = { type: "tokenize", text, parse_special: false, add_special: start };
    return (await daemon.ask(asked, signal)).tokens ?? [];
  };
  if (prefix === undefined || suffix === undefined || middle === undefined) {
    return last(await ids(place.before, true), room);
  }
  const [before, after] = await Promise.all([ids(place.before, false), ids(place.after, false)]);
  const start = bos === undefined ? [prefix] : [bos, prefix];
  const behind = after.slice(0, Math.max(0, Math.floor(room / 4)));
  const front = last(before, room - start.length - behind.length - 2);
  return [...start, ...front, suffix, ...behind, middle];
}

function last(tokens: number[], count: number): number[] {
  return tokens.slice(Math.max(0, tokens.length - Math.max(0, count)));
}
