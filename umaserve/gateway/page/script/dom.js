// Short ways to the document.  Texts go in as text nodes: no function here reads markup.

export const at = (id) => document.getElementById(id);

export function put(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

// An element with properties and children; a child that is a string becomes a text node.
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Change the contents of an element.  If that removes the focused element, focus `next()`.
export function changing(element, next, change) {
  const had = element.contains(document.activeElement);
  change();
  if (had && !element.contains(document.activeElement)) next().focus({ preventScroll: true });
}

export function button(label, act, properties = {}) {
  const made = make("button", { type: "button", ...properties }, label);
  made.addEventListener("click", act);
  return made;
}

// Let the browser store a text as a file.
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// A page that came by plain HTTP from another machine has no clipboard of the newer kind.
function toClipboard(text) {
  const box = make("textarea", { value: text, className: "unseen" });
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

export function copyButton(label, text) {
  const made = button("Copy", () => {
    toClipboard(text());
    made.focus();
    made.textContent = "Copied";
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  }, { "aria-label": label });
  made.className = "copy";
  return made;
}

// Ask before something is lost; a promise of the answer.
export function sure(question) {
  const dialog = at("sure");
  put("sure-text", question);
  dialog.showModal();
  return new Promise((done) => {
    const end = (answer) => { dialog.close(); done(answer); };
    at("sure-no").onclick = () => end(false);
    at("sure-form").onsubmit = (event) => { event.preventDefault(); end(true); };
    dialog.oncancel = () => done(false);
  });
}
