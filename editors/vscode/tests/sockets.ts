// The daemons that these tests ask. tests/clients/test_vscode.py starts both.

import assert from "node:assert/strict";

function socket(name: string, what: string): string {
  const path = process.env[name];
  assert.ok(path, `set ${name} to the socket of ${what}; make test-clients does`);
  return path;
}

/** With the bundled model. */
export const real = () => socket("UMA_SOCK", "a daemon with the bundled model");
/** With a model that says what a test of ours gives it to say. */
export const scripted = () => socket("UMA_SCRIPTED_SOCK", "a daemon with a scripted model");
