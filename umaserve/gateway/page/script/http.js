// Requests to the gateway.

let key = "";  // in this page's memory alone

export const hasKey = () => Boolean(key);

export function useKey(value) {
  key = value;
}

export function ask(path, options = {}) {
  const headers = { accept: "application/json", ...options.headers };
  if (key) headers.authorization = "Bearer " + key;
  return fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
}

// The JSON of each server-sent event.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}
