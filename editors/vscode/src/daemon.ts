// The daemon's socket: one connection, on which many requests run side by side.
// docs/PROTOCOL.md has what is said on it. Nothing here knows VS Code.

import type { Socket } from "node:net";
import { DaemonError, GONE, reach } from "./address.ts";
import { encodeFrame, FrameReader } from "./frames.ts";

/** What the daemon sends; `event` says which other fields are there. */
export interface DaemonEvent {
  event: string;
  id?: string;
  text?: string;
  code?: string;
  message?: unknown;
  reason?: string;
  tokens?: number[];
  info?: Info;
  metrics?: Metrics;
  // of `begin`
  lane?: string;
  lane_reason?: string;
  deltas?: boolean;
  // of `delta`
  content?: string;
  tool_calls?: { index: number; id?: string; name?: string; arguments?: string }[];
}

export interface Model {
  name: string;
  path: string;
  architecture: string;
  n_ctx: number;
  n_ctx_train: number;
  generates: boolean;
  /** Ids of the tokens around a gap; empty where the model has none. */
  gap: { prefix?: number; suffix?: number; middle?: number; bos?: number };
  chat: { thinks?: boolean; supports_tools?: boolean; error?: string };
}

export interface Info {
  state: string;
  model: Model | null;
  limits: { max_tokens: number };
}

export interface Metrics {
  model: string | null;
  p95_ms: number | null;
  active_sessions: number;
  apps: Record<string, { lane: string; lane_reason: string; p95_ms: number | null }>;
}

/** Tokens that one request may have. */
export function contextOf(model: Model): number {
  return Math.min(model.n_ctx, model.n_ctx_train || model.n_ctx);
}

export class Daemon {
  readonly path: string;
  #link: Promise<Socket> | undefined;
  #inboxes = new Map<string, Inbox>();
  #count = 0;

  /** Connects when it is first asked, and again after the connection has ended. */
  constructor(path: string) {
    this.path = path;
  }

  /** The one answer to an admin message. Rejects with DaemonError, or as `signal` says. */
  async ask(message: { type: string; [field: string]: unknown }, signal?: AbortSignal): Promise<DaemonEvent> {
    const { id, inbox } = await this.#send(message, signal);
    try {
      return await inbox.next();
    } finally {
      this.#inboxes.delete(id);
      inbox.release();
    }
  }

  /**
   * The events of a request for text, up to `eos`. Throws DaemonError.
   *
   * The request is cancelled on the daemon where `signal` aborts, which throws its reason here, and
   * where the caller leaves early.
   */
  async *generate(request: object, signal?: AbortSignal): AsyncGenerator<DaemonEvent, void, void> {
    const { id, inbox, link } = await this.#send(request, signal);
    let ended = false;
    try {
      while (!ended) {
        const event = await inbox.next();
        ended = event.event === "eos";
        yield event;
      }
    } catch (error) {
      ended = error instanceof DaemonError;
      throw error;
    } finally {
      this.#inboxes.delete(id);
      inbox.release();
      if (!ended && link.writable) link.write(encodeFrame({ type: "cancel", id }));
    }
  }

  /** Ends the connection; the daemon cancels what runs. */
  close(): void {
    this.#link?.then((socket) => socket.destroy()).catch(() => undefined);
  }

  async #send(message: object, signal?: AbortSignal): Promise<{ id: string; inbox: Inbox; link: Socket }> {
    this.#link ??= this.#connect();
    const link = await this.#link;
    signal?.throwIfAborted();
    const id = String(++this.#count);
    const inbox = new Inbox(signal);
    this.#inboxes.set(id, inbox);
    link.write(encodeFrame({ ...message, id }));
    return { id, inbox, link };
  }

  async #connect(): Promise<Socket> {
    let socket: Socket;
    try {
      socket = await reach(this.path);
    } catch (error) {
      this.#link = undefined;
      throw error;
    }
    const reader = new FrameReader();
    let why = new DaemonError(GONE, `the daemon at ${this.path} closed the connection; its log says why`);
    socket.on("data", (piece) => {
      try {
        for (const event of reader.push(piece) as DaemonEvent[]) {
          // an error without an id concerns the connection, which ends then
          if (event.event === "error" && event.id == null) why = refusal(event);
          else this.#inboxes.get(event.id ?? "")?.put(event);
        }
      } catch {
        why = new DaemonError(GONE, `what listens at ${this.path} does not speak as the daemon does`);
        socket.destroy();
      }
    });
    socket.on("error", () => undefined); // `close` follows
    socket.on("close", () => {
      this.#link = undefined;
      for (const inbox of this.#inboxes.values()) inbox.fail(why);
      this.#inboxes.clear();
    });
    return socket;
  }
}

function refusal(event: DaemonEvent): DaemonError {
  return new DaemonError(event.code ?? GONE, String(event.message));
}

/** Events of one request that nobody has taken yet, and what ends the wait for more. */
class Inbox {
  #events: DaemonEvent[] = [];
  #failure: unknown;
  #wake: () => void = () => undefined;
  #signal: AbortSignal | undefined;
  #abort = () => this.fail(this.#signal?.reason);

  constructor(signal: AbortSignal | undefined) {
    this.#signal = signal;
    signal?.addEventListener("abort", this.#abort);
  }

  put(event: DaemonEvent): void {
    if (event.event === "error") return this.fail(refusal(event));
    this.#events.push(event);
    this.#wake();
  }

  fail(why: unknown): void {
    this.#failure ??= why;
    this.#wake();
  }

  async next(): Promise<DaemonEvent> {
    while (true) {
      // who has cancelled wants no more, though an event may be there
      if (this.#signal?.aborted) throw this.#signal.reason;
      const event = this.#events.shift();
      if (event) return event;
      if (this.#failure !== undefined) throw this.#failure;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  release(): void {
    this.#signal?.removeEventListener("abort", this.#abort);
  }
}
