// One call of a batch: a summary line, the rest to unfold.
function makeRow(row, changed) {
  const node = make("div", "row");
  const box = make("input");
  const label = make("label", "pick");
  const more = make("details", "details");
  const chips = [make("span", "chip aiso-effect", row.effect_words)];
  node.dataset.effect = row.effect;
  box.type = "checkbox";
  box.checked = row.selected;
  more.open = row.open;
  box.addEventListener("change", changed);
  if (row.unconfined) chips.push(make("span", "chip aiso-unconfined", row.place));
  label.append(box, make("code", "tool", row.tool), ...chips);
  more.append(make("summary", "summary", row.summary || "no arguments"), makeWhy(row));
  more.append(make("div", "about", row.place), makePreview(row.preview));
  more.append(makeFindings(row.preview));
  if (row.preview.undo) more.append(makeFinding(["undo", row.preview.undo]));
  for (const field of row.fields) {
    if (field.folded) continue; // the preview shows it completely
    const text = make("pre", "text");
    paint(text, field.pieces ?? [["", field.text]]);
    more.append(make("div", "label", field.label), text);
    if (field.note) more.append(make("div", "note", field.note));
  }
  node.append(label, more);
  return { node, box, id: row.id };
}

function makeBatch(root, model, question) {
  const { view } = question;
  const key = `aiso-${++cards}`;
  const foot = make("div", "foot");
  const head = make("div", "head");
  const title = make("div", "title", `Run these ${view.rows.length} calls?`);
  const reason = makeReason();
  const deny = makeButton("deny", "Deny all", "D");
  const approve = makeButton("approve", "Approve selected", "A");
  const rows = view.rows.map((row) => makeRow(row, changed));
  const problem = make("div", "problem");
  const card = makeFrame(root, model, question, foot, { a: () => decide("approve"), d: () => decide("deny") });

  title.id = `${key}-title`;
  root.dataset.effect = view.effect;
  root.setAttribute("aria-labelledby", title.id);
  problem.setAttribute("role", "alert");
  head.append(title, card.time);
  foot.append(reason, deny, approve);
  root.replaceChildren(head, ...rows.map((row) => row.node), problem, foot, card.status);
  changed();

  function selected() {
    return rows.filter((row) => row.box.checked).map((row) => row.id);
  }

  function changed() {
    const count = selected().length;
    approve.firstChild.textContent = `Approve selected (${count})`;
    approve.disabled = count === 0;
  }

  function decide(outcome) {
    if (!card.ready() || (outcome === "approve" && approve.disabled)) return;
    card.send({ outcome, selected: selected(), reason: reason.value });
  }

  approve.addEventListener("click", () => decide("approve"));
  deny.addEventListener("click", () => decide("deny"));
  card.showInvalid = (message) => {
    card.unlock();
    changed();
    problem.textContent = message;
  };
  return card;
}
