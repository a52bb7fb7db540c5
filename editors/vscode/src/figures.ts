// What the status bar says, and how often the daemon is asked. Nothing here knows VS Code.

import type { Metrics } from "./daemon.ts";

export const APP = "vscode";
const EVERY_MS = 2000;
const LONGEST_MS = 60_000;

/** Milliseconds until the daemon is asked again, after so many questions in a row without an answer. */
export function pause(failures: number): number {
  return Math.min(EVERY_MS * 2 ** failures, LONGEST_MS);
}

export interface Lane {
  lane: string;
  reason: string;
}

/** For the status bar: `lane` is that of this window's newest request. */
export function serving(metrics: Metrics, lane: Lane | undefined): { text: string; tooltip: string } {
  const app = metrics.apps[APP];
  const p95 = app?.p95_ms ?? metrics.p95_ms;
  const of = app?.p95_ms == null ? "of all programs" : "of VS Code";
  const shown = lane ?? (app && { lane: app.lane, reason: app.lane_reason });
  const parts = [shown?.lane ?? "idle", p95 === null ? "p95 –" : `p95 ${p95.toFixed(p95 < 10 ? 1 : 0)} ms`];
  const lines = [
    metrics.model ?? "no model is loaded; load one with `umaserve load`",
    shown ? `lane: ${shown.lane} (${shown.reason})` : "nothing was asked for yet",
    p95 === null ? "no tokens in the last minute" : `time between tokens ${of}, 95th percentile: ${p95.toFixed(1)} ms`,
    `requests that run: ${metrics.active_sessions}`,
    "Click for the dashboard",
  ];
  return { text: `$(pulse) ${parts.join(" · ")}`, tooltip: lines.join("\n\n") };
}
