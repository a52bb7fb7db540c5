// The figures of `/metrics` as tiles.

import { at, make, put } from "../dom.js";
import { ms, number, percent, size } from "../format.js";

const POINTS = 60;
const MINUTE_S = 60;
const rates = new Array(POINTS).fill(0);
let former = null, sharedAt = -Infinity;

function bar(id, share, over) {
  at(id).style.width = Math.min(100, 100 * share) + "%";
  at(id).classList.toggle("over", over);
}

function draw() {
  const top = Math.max(1, ...rates);
  const points = rates.map((rate, i) => [100 - (rates.length - 1 - i) * 100 / (POINTS - 1), 39 - 37 * rate / top]);
  const line = points.map((p) => p.join(",")).join(" ");
  at("curve").children[1].setAttribute("points", line);
  at("curve").children[0].setAttribute("points", `${points[0][0]},40 ${line} 100,40`);
}

function speed(m) {
  const now = performance.now();
  if (former && m.model !== former.model) rates.fill(0);
  if (former && m.tokens_generated_total >= former.tokens) {
    rates.push((m.tokens_generated_total - former.tokens) / ((now - former.at) / 1000));
    if (rates.length > POINTS) rates.shift();
    const [one, two] = rates.slice(-2);
    at("rate").replaceChildren(number((one + two) / 2), " ", make("small", {}, "now"));
    draw();
  }
  former = { tokens: m.tokens_generated_total, at: now, model: m.model };
  const drafts = m.draft_accepted_ratio === null ? "" : ", " + number(m.tokens_per_tick, 2) + " a tick, " + percent(m.draft_accepted_ratio) + " of drafts";
  put("total", number(m.tokens_per_s, 1) + "/s in the last minute, " + number(m.tokens_generated_total) + " in all" + drafts);
}

// Return whether two requests ran at a time in the last minute.  The requests of other keys are not
// listed, so the number of streams is noted too.
function shared(m, requests) {
  const now_s = performance.now() / 1000;
  if (m.active_sessions > 1) sharedAt = now_s;
  const spans = requests.filter((each) => each.age_s < MINUTE_S).map((each) => [each.age_s + each.total_ms / 1000, each.age_s]);
  spans.sort((a, b) => b[0] - a[0]);
  return now_s - sharedAt < MINUTE_S || spans.some(([begun], i) => i && begun > Math.min(...spans.slice(0, i).map(([, end]) => end)));
}

// As it is written, so that 1.20 is not above 1.20.
function shown(ratio) {
  return Number(ratio.toFixed(2));
}

// The promise is kept while the cap holds, or while tokens come faster than a person reads.  A stream
// that ran alone waited for the machine, not for other work of this daemon.
function gauge(m, requests) {
  const over = m.p95_over_baseline, above = over !== null && shown(over) > shown(m.latency_cap);
  const late = above && m.p95_ms > m.reading_ms;
  const beside = shared(m, requests), broken = Boolean(over && late && beside);
  put("p95", ms(m.p95_ms));
  bar("cap", over ? over / m.latency_cap : 0, broken);
  const why = above && !broken ? (late ? ", nobody beside it" : ", faster than read") : "";
  put("capnote", over ? `${number(over, 2)}× alone, cap ${number(m.latency_cap, 2)}×${why}` : "");
}

function lanes(m) {
  for (const lane of ["interactive", "background"]) {
    const cells = at(lane).children;
    [number(m["queued_" + lane]), ms(m[lane + ".p95_ms"]), ms(m[lane + ".worst_pause_ms"]), ms(m[lane + ".ttft_ms_p50"])]
      .forEach((text, i) => { if (cells[i + 1].textContent !== text) cells[i + 1].textContent = text; });
  }
}

export function tiles(m, requests) {
  put("active", number(m.active_sessions));
  const waiting = m.queued_interactive + m.queued_background;
  put("queued", waiting ? number(waiting) + " waiting" : "nobody waits");
  speed(m);
  put("ttft", ms(m.ttft_ms_p50));
  put("ttft95", m.ttft_ms_p95 === null ? "" : "median; p95 " + ms(m.ttft_ms_p95));
  gauge(m, requests);
  const share = m.kv_cells_total ? m.kv_cells_used / m.kv_cells_total : 0;
  put("cells", m.kv_cells_total ? percent(share) : "–");
  bar("cellbar", share, false);
  put("cellnote", m.kv_cells_total ? number(m.kv_cells_used) + " of " + number(m.kv_cells_total) : "");
  put("cached", m.prompt_tokens_total ? percent(m.cached_tokens_total / m.prompt_tokens_total) : "–");
  put("cachenote", m.cache_ram_max_bytes ? size(m.cache_ram_bytes) + " of " + size(m.cache_ram_max_bytes) : "nothing is kept");
  put("memory", size(1e9 * m.rss_gb));
  put("memorynote", "with weights and cache");
  lanes(m);
}
