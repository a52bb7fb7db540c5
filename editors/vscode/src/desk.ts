// What the parts of one editor window share: its settings, its connection, its session.

import { randomUUID } from "node:crypto";
import * as vscode from "vscode";
import { ABSENT, DaemonError, DEFAULT_SOCKET, socketPath } from "./address.ts";
import { Daemon, type DaemonEvent } from "./daemon.ts";
import type { Lane } from "./figures.ts";

export function setting<T>(name: string, scope?: vscode.ConfigurationScope): T {
  return vscode.workspace.getConfiguration("umaserve", scope).get(name) as T;
}

export class Desk implements vscode.Disposable {
  /** Of this window, and only until it is closed: its requests belong together. */
  readonly session = `vscode-${randomUUID().slice(0, 8)}`;
  readonly log = vscode.window.createOutputChannel("UMA Serve", { log: true });
  /** Of the newest request. */
  lane: Lane | undefined;
  #daemon = new Daemon(socketPath(setting("socket")));
  #told = false;
  #dashboard: vscode.Terminal | undefined;

  /** Of the socket that the settings name now; what runs at another one is cancelled. */
  get daemon(): Daemon {
    const path = socketPath(setting("socket"));
    if (path !== this.#daemon.path) {
      this.#daemon.close();
      this.#daemon = new Daemon(path);
    }
    return this.#daemon;
  }

  get priority(): string {
    return setting("priority");
  }

  begun = ({ lane, lane_reason }: DaemonEvent): void => {
    if (lane) this.lane = { lane, reason: lane_reason ?? "" };
  };

  /** A daemon has answered: the next time that none is there is news again. */
  present(): void {
    this.#told = false;
  }

  /** Log what went wrong. That no daemon is there is shown once, with what can be done. */
  async failed(error: unknown): Promise<void> {
    const text = error instanceof Error ? error.message : String(error);
    this.log.warn(text);
    if (!(error instanceof DaemonError) || error.code !== ABSENT || this.#told) return;
    this.#told = true;
    const start = "Start it";
    const chosen = await vscode.window.showWarningMessage(`UMA Serve: ${text}`, start, "Settings");
    if (chosen === start) this.start();
    else if (chosen) await vscode.commands.executeCommand("workbench.action.openSettings", "umaserve");
  }

  start(): void {
    this.#terminal("UMA Serve", "", vscode.TerminalLocation.Panel);
  }

  /** In a new terminal: what is written into the old one may be keys of a dashboard. */
  dashboard(): void {
    this.#dashboard?.dispose();
    this.#dashboard = this.#terminal("UMA Serve dashboard", " top", vscode.TerminalLocation.Editor);
  }

  #terminal(name: string, words: string, location: vscode.TerminalLocation): vscode.Terminal {
    const path = this.daemon.path;
    const option = path === DEFAULT_SOCKET ? "" : ` --socket '${path.replaceAll("'", `'\\''`)}'`;
    const terminal = vscode.window.createTerminal({ name, location });
    terminal.show();
    terminal.sendText(`${setting<string>("command")}${words}${option}`);
    return terminal;
  }

  dispose(): void {
    this.#daemon.close();
    this.log.dispose();
  }
}

/** Aborts when VS Code's token is cancelled. */
export function signalOf(token: vscode.CancellationToken): AbortSignal {
  const controller = new AbortController();
  if (token.isCancellationRequested) controller.abort();
  token.onCancellationRequested(() => controller.abort());
  return controller.signal;
}
