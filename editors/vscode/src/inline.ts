// Suggestions while somebody types. VS Code cancels a question as soon as the text has changed.

import { setTimeout } from "node:timers/promises";
import * as vscode from "vscode";
import { around, complete } from "./completion.ts";
import { type Desk, setting, signalOf } from "./desk.ts";

export class InlineCompletions implements vscode.InlineCompletionItemProvider {
  readonly #desk: Desk;

  constructor(desk: Desk) {
    this.#desk = desk;
  }

  async provideInlineCompletionItems(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    const asked = context.triggerKind === vscode.InlineCompletionTriggerKind.Invoke;
    if (!asked && !setting<boolean>("inline.enable", document)) return [];
    const signal = signalOf(token);
    try {
      if (!asked) await setTimeout(setting("inline.debounceMs", document), undefined, { signal });
      const { before, after } = around(document.getText(), document.offsetAt(position));
      // an entry that is selected in the list of words counts as written
      const chosen = context.selectedCompletionInfo;
      const written = chosen ? document.getText(new vscode.Range(chosen.range.start, position)) : "";
      const place = { before: before.slice(0, before.length - written.length) + (chosen?.text ?? ""), after };
      const asking = {
        session: this.#desk.session, priority: this.#desk.priority,
        maxTokens: setting<number>("inline.maxTokens", document),
      };
      const text = await complete(this.#desk.daemon, place, asking, signal, this.#desk.begun);
      if (!text) return [];
      const range = chosen?.range ?? new vscode.Range(position, position);
      return [new vscode.InlineCompletionItem((chosen?.text ?? "") + text, range)];
    } catch (error) {
      if (!signal.aborted) void this.#desk.failed(error);
      return [];
    }
  }
}
