// Chat, suggestions and figures of the daemon in one editor window.

import * as vscode from "vscode";
import { ChatModels, VENDOR } from "./chat.ts";
import { Desk } from "./desk.ts";
import { InlineCompletions } from "./inline.ts";
import { Status } from "./status.ts";

export function activate(context: vscode.ExtensionContext): void {
  const desk = new Desk();
  const status = new Status(desk);
  const inline = new InlineCompletions(desk);
  const chat = new ChatModels(desk, status.onDidChangeModel);
  context.subscriptions.push(
    desk,
    status,
    vscode.languages.registerInlineCompletionItemProvider({ pattern: "**" }, inline),
    vscode.lm.registerLanguageModelChatProvider(VENDOR, chat),
    vscode.commands.registerCommand("umaserve.dashboard", () => desk.dashboard()),
    vscode.commands.registerCommand("umaserve.start", () => {
      desk.start();
      status.soon();
    }),
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("umaserve.socket")) status.soon();
    }),
  );
}
