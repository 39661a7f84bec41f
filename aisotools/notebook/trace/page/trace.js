// The live trace of a run. Operations come in batches and are applied in slices of a few milliseconds, so that
// the page stays responsive however many there are. All text is set as text, never as markup.
const SLICE_MS = 8;
const MAX_LINES = 120; // lines of one call in the page while it runs
const MARKS = { running: "…", asking: "?", ok: "✓", error: "✕", denied: "✕", note: "·" };

function makeItem() {
  const node = make("details", "item");
  const line = make("summary", "item-line");
  const parts = {
    mark: make("span", "mark"),
    title: make("span", "item-title"),
    words: make("span", "item-words"),
    arguments: make("pre", "item-arguments"),
    text: make("pre", "item-text"),
    lines: make("pre", "item-lines"),
    now: make("div", "item-now"),
    bar: make("div", "bar"),
  };
  parts.fill = make("div", "bar-fill");
  parts.barWords = make("div", "bar-words");
  parts.track = make("div", "bar-track");
  parts.track.setAttribute("role", "progressbar");
  parts.track.append(parts.fill);
  parts.bar.append(parts.track, parts.barWords);
  line.append(parts.mark, parts.title, parts.words);
  node.append(line, parts.arguments, parts.lines, parts.now, parts.text);
  const live = make("div", "live");
  live.append(node, parts.bar);
  parts.bar.hidden = true;
  return { node, live, parts, removedLines: 0, toggled: false };
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
  node.hidden = text === "";
}

function applyItem(item, op) {
  const { parts, node } = item;
  item.live.dataset.state = op.state;
  item.live.dataset.kind = op.kind;
  parts.mark.textContent = MARKS[op.state];
  parts.title.textContent = op.title;
  parts.words.textContent = op.words;
  setText(parts.arguments, op.arguments);
  setText(parts.text, op.text);
  const isActive = op.kind === "call" ? ["running", "asking"].includes(op.state) : op.kind === "model";
  if (!item.toggled) node.open = isActive; // until the person opens or closes it
}

function applyLines(item, lines) {
  const { parts } = item;
  parts.lines.hidden = false;
  parts.lines.append(...lines.map((line) => make("div", "", line || " ")));
  while (parts.lines.childElementCount > MAX_LINES) {
    parts.lines.firstChild.remove();
    item.removedLines += 1;
  }
  if (item.removedLines) parts.lines.dataset.removed = `${item.removedLines} lines above`;
}

function applyNow(item, op) {
  const { parts } = item;
  setText(parts.now, op.bar ? "" : op.text);
  parts.bar.hidden = !op.bar;
  if (!op.bar) return;
  parts.fill.style.width = `${op.bar.percent}%`;
  parts.track.setAttribute("aria-valuenow", String(Math.round(op.bar.percent)));
  parts.track.setAttribute("aria-label", op.bar.label || "progress");
  parts.barWords.textContent = [op.bar.label, `${Math.round(op.bar.percent)} %`, op.bar.rest].filter(Boolean).join(" · ");
}

function render({ model, el }) {
  const root = make("div", "trace");
  const head = make("div", "trace-head");
  const title = make("span", "trace-title");
  const total = make("span", "trace-total");
  const list = make("div", "trace-items");
  const items = new Map();
  let queue = [];
  let drawing = false;
  let shown = false;
  root.setAttribute("role", "log");
  root.setAttribute("aria-label", "trace");
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  root.addEventListener("keydown", (event) => event.stopPropagation());
  head.append(title, total);
  root.append(head, list);
  el.append(root);

  function apply(op) {
    if (op.op === "total") return void (total.textContent = op.words);
    if (!items.has(op.key)) {
      if (op.op !== "item") return;
      const item = makeItem();
      item.node.querySelector("summary").addEventListener("click", () => (item.toggled = true));
      items.set(op.key, item);
      list.append(item.live);
    }
    const item = items.get(op.key);
    if (op.op === "item") applyItem(item, op);
    else if (op.op === "lines") applyLines(item, op.lines);
    else if (op.op === "now") applyNow(item, op);
    else if (op.op === "text") {
      item.parts.text.hidden = false;
      item.parts.text.append(op.add);
    }
  }

  function draw() {
    const ends = performance.now() + SLICE_MS;
    let next = 0;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    while (next < queue.length && (next % 8 || performance.now() < ends)) apply(queue[next++]);
    queue = queue.slice(next);
    if (atEnd) list.scrollTop = list.scrollHeight;
    drawing = queue.length > 0;
    if (drawing) requestAnimationFrame(draw);
  }

  function onMessage(message) {
    if (message.type === "show") {
      if (shown) return;
      shown = true;
      title.textContent = `trace of ${message.title}`;
    }
    if (!shown) return;
    queue.push(...message.ops);
    if (!drawing) {
      drawing = true;
      requestAnimationFrame(draw);
    }
  }
  model.on("msg:custom", onMessage);
  let tries = 0;
  const hello = setInterval(greet, 250);
  function greet() {
    if (shown || tries++ >= 5) return clearInterval(hello);
    model.send({ type: "hello" });
  }
  greet();
  return () => {
    clearInterval(hello);
    model.off("msg:custom", onMessage);
  };
}

export default { render };
