// Messages of VS Code's chat as the daemon reads them, and answers as the chat reads them.
// Parts are told apart by their fields, so nothing here needs VS Code.

import { DaemonError } from "./address.ts";
import type { Daemon, DaemonEvent } from "./daemon.ts";

const ASSISTANT = 2; // LanguageModelChatMessageRole; 1 is the user, and 3 the system where it is let
const SYSTEM = 3;

export interface ChatMessage {
  role: number;
  content: readonly unknown[];
}

/** The daemon's `messages`. Throws Error where a part cannot be told to a model of text. */
export function messagesOf(conversation: readonly ChatMessage[]): object[] {
  return conversation.flatMap(({ role, content }) => {
    const results = content.filter(isResult).map((part) => ({
      role: "tool", tool_call_id: part.callId, content: textOf(part.content),
    }));
    const calls = content.filter(isCall).map((part) => ({
      id: part.callId, type: "function",
      function: { name: part.name, arguments: JSON.stringify(part.input) },
    }));
    const text = textOf(content.filter((part) => !isResult(part) && !isCall(part)));
    if (role === ASSISTANT) {
      return [{ role: "assistant", content: text || null, ...(calls.length ? { tool_calls: calls } : {}) }];
    }
    const said = text ? [{ role: role === SYSTEM ? "system" : "user", content: text }] : [];
    return [...results, ...said];
  });
}

/** All texts of the parts, one behind another. */
export function textOf(parts: readonly unknown[]): string {
  return parts.map((part) => {
    if (has(part, "mimeType", "string") && has(part, "data", "object")) {
      const { mimeType, data } = part as { mimeType: string; data: Uint8Array };
      if (/^text\/|json/.test(mimeType)) return Buffer.from(data).toString("utf8");
      if (/^(image|audio|video)\//.test(mimeType)) {
        throw new Error(`this model reads text alone; take the attachment (${mimeType}) out of the conversation`);
      }
      return ""; // marks of other extensions, which are for nobody else
    }
    if (!has(part, "value")) return "";
    const { value } = part as { value: unknown };
    return typeof value === "string" ? value : JSON.stringify(value);
  }).join("");
}

interface Result { callId: string; content: unknown[] }
interface Call { callId: string; name: string; input: object }

function isResult(part: unknown): part is Result {
  return has(part, "callId", "string") && has(part, "content", "object");
}

function isCall(part: unknown): part is Call {
  return has(part, "callId", "string") && has(part, "name", "string");
}

function has(part: unknown, field: string, type?: string): boolean {
  if (typeof part !== "object" || part === null || !(field in part)) return false;
  return type === undefined || typeof (part as Record<string, unknown>)[field] === type;
}

export interface Tool {
  name: string;
  description: string;
  inputSchema?: object | undefined;
}

/** The daemon's fields for tools; nothing where there are none. */
export function toolsOf(tools: readonly Tool[] | undefined, required: boolean): object {
  if (!tools?.length) return {};
  return {
    tools: tools.map(({ name, description, inputSchema }) => ({
      type: "function",
      function: { name, description, parameters: inputSchema ?? { type: "object", properties: {} } },
    })),
    tool_choice: required ? "required" : "auto",
  };
}

/** What callers may say of an answer, by our names; the rest of theirs is left out. */
export function samplingOf(options: { readonly [name: string]: unknown } | undefined): object {
  const known = ["temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens"];
  return Object.fromEntries(Object.entries(options ?? {}).filter(([name]) => known.includes(name)));
}

export interface Listener {
  begun(event: DaemonEvent): void;
  text(part: string): void;
  /** A whole call. */
  call(id: string, name: string, input: object): void;
}

/** Asks, and tells the listener of each piece. What the model thinks is left out. */
export async function answer(
  daemon: Daemon,
  request: object,
  signal: AbortSignal,
  listener: Listener,
): Promise<void> {
  const calls: { id: string; name: string; arguments: string }[] = [];
  let deltas = false;
  for await (const event of daemon.generate({ ...request, begin: true, deltas: true }, signal)) {
    if (event.event === "begin") {
      deltas = event.deltas ?? false;
      listener.begun(event);
    } else if (event.event === "token" && !deltas) {
      if (event.text) listener.text(event.text);
    } else if (event.event === "delta") {
      if (event.content) listener.text(event.content);
      for (const piece of event.tool_calls ?? []) {
        const call = (calls[piece.index] ??= { id: "", name: "", arguments: "" });
        call.id ||= piece.id ?? "";
        call.name ||= piece.name ?? "";
        call.arguments += piece.arguments ?? "";
      }
    }
  }
  for (const call of calls) listener.call(call.id, call.name, inputOf(call));
}

function inputOf(call: { name: string; arguments: string }): object {
  try {
    return JSON.parse(call.arguments || "{}") as object;
  } catch {
    throw new DaemonError("E_RUNTIME_003", `the model's call of ${call.name} is no JSON; ask again`);
  }
}
