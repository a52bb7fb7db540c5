// The stream of an answer.

import { events, ask } from "../http.js";
import { ms, number } from "../format.js";

function addCalls(node, calls) {
  node.calls = node.calls || [];
  for (const part of calls) {
    const call = node.calls[part.index] = node.calls[part.index] || { id: "", name: "", arguments: "" };
    if (part.id) call.id = part.id;
    call.name += part.function?.name || "";
    call.arguments += part.function?.arguments || "";
  }
}

function facts(node, { began, first, usage, lane, reason }) {
  const took = (performance.now() - first) / 1000, found = [];
  if (reason === "length") found.push("cut at the limit");
  if (usage) found.push(number(usage.completion_tokens) + " tokens");
  if (usage && first && took > 0.05) found.push(number(usage.completion_tokens / took, 1) + "/s");
  if (first) found.push("first after " + ms(first - began));
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (usage) found.push(number(usage.prompt_tokens) + " in the prompt" + (cached ? `, ${number(cached)} of them cached` : ""));
  if (lane) found.push(lane);
  if (node.model) found.push(node.model);
  return found.join(" · ");
}

// Fill a node from a stream; `grown` is called after each part.  A failure's text is in `node.error`.
export async function answer(node, body, session, stop, grown) {
  const seen = { began: performance.now(), first: 0, usage: null, lane: "", reason: "" };
  try {
    const reply = await ask("/v1/chat/completions", {
      method: "POST", signal: stop.signal,
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      headers: {
        "content-type": "application/json", accept: "text/event-stream", "x-uma-app": "web page",
        "x-uma-session": session,
      },
    });
    seen.lane = (reply.headers.get("x-uma-lane") || "").split(";")[0];
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const chunk of events(reply.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      seen.usage = chunk.usage || seen.usage;
      node.model = chunk.model || node.model;
      const choice = chunk.choices[0];
      if (!choice) continue;
      seen.reason = choice.finish_reason || seen.reason;
      const { reasoning_content: thought, content: text, tool_calls: calls } = choice.delta;
      if (thought || text || calls) seen.first = seen.first || performance.now();
      if (thought) node.reasoning = (node.reasoning || "") + thought;
      if (text) node.content += text;
      if (calls) addCalls(node, calls);
      grown();
    }
    if (!seen.reason) throw new Error("The connection was lost.");
  } catch (error) {
    if (error.name === "AbortError") node.stopped = true;
    else node.error = error instanceof TypeError ? "The connection was lost." : error.message;
  }
  node.facts = [node.stopped ? "stopped" : "", facts(node, seen)].filter(Boolean).join(" · ");
}
