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
  node.append(...(preview.findings ?? []).map(makeFinding));
  if (preview.trial) node.append(makeTrial(preview.trial));
  if (preview.undo) node.append(makeFinding(["undo", preview.undo]));
  return node;
}

function makeHead(view, key, time) {
  const head = make("div", "head");
  const title = make("div", "title");
  title.append("Run ", make("code", "tool", view.tool), "?");
  title.id = `${key}-title`;
  const place = make("span", view.unconfined ? "chip aiso-unconfined" : "chip", view.place);
  head.append(title, make("span", "chip aiso-effect", view.effect_words), place, time);
  return head;
}

function makeWhy(view) {
  const why = make("div", "why");
  why.append(make("div", "about", [view.about, view.who].filter(Boolean).join(" · ")));
  for (const reason of view.reasons) why.append(make("div", "", reason));
  return why;
}
