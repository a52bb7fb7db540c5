// The tables of programs and of requests that ended.

import { at, make } from "../dom.js";
import { ms, number, percent, short } from "../format.js";

const APPS = 6;
const RECENT = 8;

function name(text, lane) {
  return make("td", {}, make("span", { className: "name", title: text }, text), make("small", {}, lane));
}

function row(title, first, texts) {
  return make("tr", { title }, first, ...texts.map((text) => make("td", {}, text)));
}

export function apps(known) {
  const there = Object.entries(known || {}).filter(([, app]) => app.active || app.share || app.p95_ms !== null);
  there.sort((a, b) => (b[1].share || 0) - (a[1].share || 0));
  at("appcard").hidden = !there.length;
  at("apps").replaceChildren(...there.slice(0, APPS).map(([app, its]) => row(
    its.lane_reason || "", name(app, its.lane || "–"), [percent(its.share), ms(its.p95_ms), percent(its.cached)],
  )));
}

export function recent(requests) {
  at("recentcard").hidden = !requests.length;
  at("recent").replaceChildren(...requests.slice(-RECENT).reverse().map((each) => row(
    `${each.lane_reason}; ended with ${each.reason} ${number(each.age_s)} s ago, after ${ms(each.total_ms)}`,
    name(each.app || "–", each.lane),
    [
      short(each.cached_tokens) + "/" + short(each.prompt_tokens), ms(each.ttft_ms), ms(each.tbt_p95_ms),
      short(each.completion_tokens),
    ],
  )));
}
