// Text is only ever set as text, never as markup: all of it is untrusted.
let cards = 0;

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = `aiso-${name}`;
  if (text !== undefined) node.textContent = text;
  return node;
}

// What stays of a question: words, and lines below them.
function paintRecord(root, words, lines = []) {
  root.replaceChildren(make("div", "title", words), ...lines.map((line) => make("div", "about", line)));
}

function clock(seconds) {
  const left = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")} left`;
}

function makeButton(name, text, letter) {
  const button = make("button", `button aiso-${name}`, text);
  button.type = "button";
  button.setAttribute("aria-keyshortcuts", `Alt+${letter}`);
  const shown = make("span", "key", `Alt+${letter}`);
  shown.setAttribute("aria-hidden", "true"); // announced by aria-keyshortcuts
  button.append(shown);
  return button;
}

function makeSmall(text, act) {
  const button = make("button", "small", text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

// Code in pieces of one colour each.
function paint(node, pieces) {
  node.replaceChildren(...pieces.map(([kind, text]) => (kind ? make("span", `c-${kind}`, text) : text)));
}
