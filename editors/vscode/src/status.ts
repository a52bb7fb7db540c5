// Lane and p95 in the status bar. The daemon is asked while the window has the focus, and less and
// less often while none is there.

import * as vscode from "vscode";
import { ABSENT, DaemonError } from "./address.ts";
import type { Desk } from "./desk.ts";
import { pause, serving } from "./figures.ts";

const ANSWER_MS = 5000;

export class Status implements vscode.Disposable {
  readonly #desk: Desk;
  readonly #item = vscode.window.createStatusBarItem("umaserve", vscode.StatusBarAlignment.Right);
  readonly #changed = new vscode.EventEmitter<void>();
  /** Another model serves, or none. */
  readonly onDidChangeModel = this.#changed.event;
  readonly #focus: vscode.Disposable;
  #timer: NodeJS.Timeout | undefined;
  #failures = 0;
  #model: string | null = null;
  #asking = false;

  constructor(desk: Desk) {
    this.#desk = desk;
    this.#item.name = "UMA Serve";
    this.#item.text = "$(pulse) UMA Serve";
    this.#item.show();
    this.#focus = vscode.window.onDidChangeWindowState(({ focused }) => focused && this.soon());
    this.soon();
  }

  /** Ask now, and from now on as if a daemon were there. */
  soon(): void {
    this.#failures = 0;
    void this.#ask();
  }

  async #ask(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    clearTimeout(this.#timer);
    let model: string | null = null;
    try {
      const { metrics } = await this.#desk.daemon.ask({ type: "metrics" }, AbortSignal.timeout(ANSWER_MS));
      this.#failures = 0;
      this.#desk.present();
      model = metrics!.model;
      this.#show(serving(metrics!, this.#desk.lane), "umaserve.dashboard");
    } catch (error) {
      this.#failures += 1;
      this.#away(error);
    }
    if (model !== this.#model) this.#changed.fire();
    this.#model = model;
    this.#asking = false;
    // a window in the background asks again when it has the focus
    if (vscode.window.state.focused) this.#timer = setTimeout(() => void this.#ask(), pause(this.#failures));
  }

  #away(error: unknown): void {
    const absent = error instanceof DaemonError && error.code === ABSENT;
    const text = absent ? "no daemon" : "no answer";
    const why = error instanceof DaemonError ? error.message : `no answer in ${ANSWER_MS / 1000} s`;
    const click = absent ? "Click to start it in a terminal" : "Click for the dashboard";
    const told = { text: `$(warning) UMA Serve: ${text}`, tooltip: `${why}\n\n${click}` };
    this.#show(told, absent ? "umaserve.start" : "umaserve.dashboard");
  }

  #show({ text, tooltip }: { text: string; tooltip: string }, command: string): void {
    this.#item.text = text;
    this.#item.tooltip = tooltip;
    this.#item.command = command;
  }

  dispose(): void {
    clearTimeout(this.#timer);
    this.#focus.dispose();
    this.#changed.dispose();
    this.#item.dispose();
  }
}
