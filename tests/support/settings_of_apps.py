"""Settings of apps as their users have them, each with what the app itself writes at first.

By app, and for each file below the home: its text, with comments, odd indentation and other
entries where the format has these.
"""

from __future__ import annotations

ZED = """\
// Zed settings
//
// For information on how to configure Zed, see the Zed
// documentation: https://zed.dev/docs/configuring-zed
//
// To see all of Zed's default settings without changing your
// custom settings, run `zed: open default settings` from the
// command palette (cmd-shift-p / ctrl-shift-p)
{
  "agent": {
    "default_model": {
      "provider": "zed.dev",
      "model": "claude-sonnet-4-5", // the thinking one is too slow
    },
    "favorite_models": [],
  },
  "edit_predictions": {
    "mode": "subtle", /* only with alt */
    "provider": "zed",
  },
  "ui_font_size": 16,
  "theme": {
    "mode": "system",
    "light": "One Light",
    "dark": "One Dark",
  },
  "lsp": {
      "rust-analyzer": { "binary": { "path": "/usr/bin/rust-analyzer" } },
  },
}
"""
VS_CODE = """\
[
\t{
\t\t"name": "Ollama",
\t\t"vendor": "ollama",
\t\t"url": "http://localhost:11434"
\t},
\t{
\t\t"name": "Router",
\t\t"vendor": "customendpoint",
\t\t"apiKey": "${input:chat.lm.secret.-1a2b3c}",
\t\t"apiType": "chat-completions",
\t\t"models": [ { "id": "big", "name": "Big", "url": "https://router.example/v1/chat" } ]
\t}
]"""
CONTINUE = """\
name: Local Agent
version: 1.0.0
schema: v1
# the first model is the one that a new chat begins with
models:
- name: Claude   # by the team's key
  provider: anthropic
  model: claude-sonnet-4-5
  apiKey: ${{ secrets.ANTHROPIC_API_KEY }}
  roles: [chat, edit]
  chatOptions:
    baseSystemMessage: |
      Answer in one sentence.

      # not a comment

# context providers
context:
  - provider: code
  - provider: diff
"""
CLAUDE_CODE = """\
{
  "permissions": {
    "allow": [
      "Bash(git log:*)",
      "Read(~/.zshrc)"
    ],
    "defaultMode": "acceptEdits"
  },
  "env": {
    "EDITOR": "vim"
  },
  "model": "opus",
  "alwaysThinkingEnabled": true,
  "hooks": {}
}
"""
CODEX = """\
# Codex
model = "gpt-5.5-codex" # the default
model_reasoning_effort = "high"

[projects."/home/me/my work"]
trust_level = "trusted"

[mcp_servers.docs]
command = "npx"
args = [
    "-y",  # no question
    "docs-mcp",
]

[model_providers.proxy]
name = 'Proxy'
base_url = "http://proxy.example/v1"

[tui]
notifications = true
"""
CODEX_MODELS = '{"models": []}\n'
OPENCODE = """\
{
    "$schema": "https://opencode.ai/config.json",
    // one for everything
    "model": "anthropic/claude-sonnet-4-5",
    "provider": { "anthropic": { "options": { "timeout": 600000 } } },
    "mcp": {},
}
"""
QWEN_CODE = """\
{
  "$version": 4,
  "security": {
    "auth": {
      "selectedType": "qwen-oauth"
    }
  },
  "modelProviders": {
    "openai": [
      {"id": "qwen3-coder-plus", "name": "Plus", "envKey": "DASHSCOPE_API_KEY"}
    ]
  },
  "ui": { "theme": "Qwen Dark" }
}
"""
AIDER = """\
##########################################################
# Sample .aider.conf.yml
##########################################################

# Note: You can only put OpenAI and Anthropic API keys in the YAML
# config file.

#############
# Main model:

## Specify the model to use for the main chat
#model: xxx
model: sonnet

########################
# API Keys and settings:

## Specify the OpenAI API key
#openai-api-key: xxx

## Specify the api base url
#openai-api-base: xxx

alias:
  - "fast:gpt-5-mini"
dark-mode: true
read: [CONVENTIONS.md, notes.txt]
"""
AIDER_MODELS = """\
{
    "deepseek/deepseek-chat": {
        "max_tokens": 4096,
        "max_input_tokens": 32000,
        "litellm_provider": "deepseek",
        "mode": "chat"
    }
}
"""
LLM = """\
# my models
- model_id: orca
  model_name: orca-mini
  api_base: "http://localhost:8000"   # on the other machine
  aliases: [o]
-   model_id: vision
    model_name: llava
    api_base: http://localhost:8001
    vision: true
"""

SETTINGS = {
    "zed": {".config/zed/settings.json": ZED},
    "vscode": {".config/Code/User/chatLanguageModels.json": VS_CODE},
    "continue": {".continue/config.yaml": CONTINUE},
    "claude-code": {".claude/settings.json": CLAUDE_CODE},
    "codex": {".codex/config.toml": CODEX, ".codex/uma-models.json": CODEX_MODELS},
    "opencode": {".config/opencode/opencode.json": OPENCODE},
    "qwen-code": {".qwen/settings.json": QWEN_CODE},
    "aider": {".aider.conf.yml": AIDER, ".aider.model.metadata.json": AIDER_MODELS},
    "llm": {".config/io.datasette.llm/extra-openai-models.yaml": LLM},
}
