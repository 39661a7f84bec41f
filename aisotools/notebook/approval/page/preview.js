// Previews: what a call would do, besides its arguments.
function makeDiff(diff) {
  const node = make("div", "diff");
  const head = make("div", "diff-head");
  head.append(make("code", "tool", diff.path));
  if (diff.lines.length) {
    head.append(make("span", "added", `+${diff.added}`), make("span", "removed", `−${diff.removed}`));
  }
  if (diff.note) head.append(make("span", "diff-note", diff.note));
  node.append(head);
  if (diff.lines.length) {
    const kinds = { "+": "diff-new", "-": "diff-old", "@": "diff-where" };
    const lines = make("div", "diff-lines");
    lines.append(...diff.lines.map((line) => make("div", kinds[line[0]] ?? "diff-same", line || " ")));
    lines.tabIndex = 0; // it scrolls
    lines.setAttribute("role", "region");
    lines.setAttribute("aria-label", "change");
    node.append(lines);
  }
  return node;
}

function makeWeb(web) {
  const node = make("div", "web");
  node.append(make("span", "method", web.method), make("code", "url", web.url));
  const host = make("div", "finding");
  host.append(make("span", "finding-word", "host"), make("strong", "finding-names", web.host));
  node.append(host);
  return node;
}

function makeFinding([word, names]) {
  const node = make("div", word === "beware" ? "finding aiso-beware" : "finding");
  node.append(make("span", "finding-word", word), make("span", "finding-names", names));
  return node;
}

function makeTrial(lines) {
  const node = make("div", "diff");
  const head = make("div", "diff-head");
  head.append(make("span", "diff-note", "printed when it was tried without write rights"));
  const printed = make("div", "diff-lines");
  printed.append(...lines.map((line) => make("div", "diff-same", line || " ")));
  printed.tabIndex = 0; // it scrolls
  printed.setAttribute("role", "region");
  printed.setAttribute("aria-label", "output of the trial");
  node.append(head, printed);
  return node;
}

function makePreview(preview) {
  const node = make("div", "preview");
  if (preview.diff) node.append(makeDiff(preview.diff));
  if (preview.web) node.append(makeWeb(preview.web));
  if (preview.trial) node.append(makeTrial(preview.trial));
  return node;
}

// What the kernel has found out about the call.
function makeFindings(preview) {
  const node = make("div", "findings");
  node.append(...(preview.findings ?? []).map(makeFinding));
  return node;
}

// What is asked in plain words, with the tool that would do it.
function makeHead(view, key, time) {
  const head = make("div", "head");
  const title = make("div", "title", `${view.title}?`);
  title.id = `${key}-title`;
  const tool = make("code", "tool aiso-by", view.tool);
  tool.title = [view.about, view.who].filter(Boolean).join(" · ");
  head.append(title, tool, time);
  return head;
}

// One line of facts: what comes of it, where it runs, and what undo covers.
function makeFacts(view) {
  const facts = make("div", "facts");
  const place = make("span", view.unconfined ? "chip aiso-unconfined" : "fact", view.place);
  facts.append(make("span", "chip aiso-effect", view.effect_words), place);
  if (view.preview.undo) facts.append(make("span", "fact", view.preview.undo));
  return facts;
}

// Lines that are shown at once of a longer text.
const SHOWN_LINES = 12;

// The arguments to be read: code and long texts as blocks, the rest as names and values.
function makeReading(view) {
  const node = make("div", "reading");
  const pairs = make("dl", "pairs");
  for (const field of view.fields) {
    if (field.folded || field.said) continue; // the preview shows it
    const isBlock = ["shell", "python"].includes(field.kind) || field.text.includes("\n") || field.text.length > 100;
    if (isBlock) node.append(makeBlock(field, view.fields.length > 1));
    else {
      const value = make("dd", field.kind === "secret" ? "value aiso-masked" : "value", field.text);
      pairs.append(make("dt", "name", field.label), value);
      if (field.note) value.append(make("div", "note", field.note));
    }
  }
  if (pairs.childElementCount) node.append(pairs);
  return node;
}

function makeBlock(field, isNamed) {
  const node = make("div", "block");
  const text = make("pre", "text");
  const pieces = field.pieces ?? [["", field.text]];
  const lines = field.text.split("\n");
  const hidden = lines.length - SHOWN_LINES;
  paint(text, pieces);
  text.tabIndex = 0; // it may scroll
  text.setAttribute("role", "region");
  text.setAttribute("aria-label", `${field.label}, to read`);
  if (isNamed) node.append(make("div", "label", field.label));
  node.append(text);
  if (hidden > 1) {
    text.classList.add("aiso-faded");
    const more = makeSmall(`${hidden} more lines ▾`, () => {
      text.classList.remove("aiso-faded");
      more.remove();
    });
    node.append(more);
  }
  if (field.note) node.append(make("div", "note", field.note));
  return node;
}

function makeWhy(view) {
  const why = make("div", "why");
  why.append(...view.reasons.map((reason) => make("div", "", `Asked because ${reason}`)));
  return why;
}
