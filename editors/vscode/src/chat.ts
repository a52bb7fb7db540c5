// The daemon's model in VS Code's chat, and for extensions that ask `vscode.lm` for one.

import * as vscode from "vscode";
import { DaemonError } from "./address.ts";
import { answer, messagesOf, samplingOf, textOf, toolsOf } from "./conversation.ts";
import { contextOf } from "./daemon.ts";
import { type Desk, signalOf } from "./desk.ts";
import { APP } from "./figures.ts";

export const VENDOR = "umaserve";

export class ChatModels implements vscode.LanguageModelChatProvider {
  readonly #desk: Desk;
  readonly onDidChangeLanguageModelChatInformation: vscode.Event<void>;

  /** `changed` fires when another model serves, or none. */
  constructor(desk: Desk, changed: vscode.Event<void>) {
    this.#desk = desk;
    this.onDidChangeLanguageModelChatInformation = changed;
  }

  /** The model that serves; none while there is no daemon, which is told where somebody waits. */
  async provideLanguageModelChatInformation(
    { silent }: vscode.PrepareLanguageModelChatModelOptions,
    token: vscode.CancellationToken,
  ): Promise<vscode.LanguageModelChatInformation[]> {
    try {
      const { info } = await this.#desk.daemon.ask({ type: "info" }, signalOf(token));
      const model = info?.model;
      if (!model?.generates || model.chat.error) return [];
      const context = contextOf(model);
      const maxOutputTokens = Math.min(info!.limits.max_tokens, Math.floor(context / 4));
      return [{
        id: model.name, name: model.name, family: model.architecture, version: "1",
        detail: "UMA Serve", tooltip: `${model.path}, served at ${this.#desk.daemon.path}`,
        maxInputTokens: context - maxOutputTokens, maxOutputTokens,
        capabilities: { toolCalling: model.chat.supports_tools ?? false, imageInput: false },
      }];
    } catch (error) {
      if (!silent && !token.isCancellationRequested) void this.#desk.failed(error);
      return [];
    }
  }

  async provideLanguageModelChatResponse(
    _model: vscode.LanguageModelChatInformation,
    messages: readonly vscode.LanguageModelChatRequestMessage[],
    options: vscode.ProvideLanguageModelChatResponseOptions,
    progress: vscode.Progress<vscode.LanguageModelResponsePart>,
    token: vscode.CancellationToken,
  ): Promise<void> {
    const signal = signalOf(token);
    const required = options.toolMode === vscode.LanguageModelChatToolMode.Required;
    const request = {
      ...samplingOf(options.modelOptions),
      ...toolsOf(options.tools, required),
      messages: messagesOf(messages),
      app: APP, session: this.#desk.session, priority: this.#desk.priority,
    };
    try {
      await answer(this.#desk.daemon, request, signal, {
        begun: this.#desk.begun,
        text: (part) => progress.report(new vscode.LanguageModelTextPart(part)),
        call: (...call) => progress.report(new vscode.LanguageModelToolCallPart(...call)),
      });
    } catch (error) {
      if (signal.aborted) return;
      void this.#desk.failed(error);
      throw error instanceof DaemonError ? new Error(`UMA Serve: ${error.message}`) : error;
    }
  }

  async provideTokenCount(
    _model: vscode.LanguageModelChatInformation,
    text: string | vscode.LanguageModelChatRequestMessage,
    token: vscode.CancellationToken,
  ): Promise<number> {
    const said = typeof text === "string" ? text : textOf(text.content);
    if (!said) return 0;
    const asked = { type: "tokenize", text: said, parse_special: false };
    return (await this.#desk.daemon.ask(asked, signalOf(token))).tokens?.length ?? 0;
  }
}
