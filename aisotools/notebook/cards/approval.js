// The approval card. Everything it shows was chosen by whoever wants the call to run: text is only ever set
// as text, and the kernel has already made every character visible. Messages are listed in approval.py.

const ARM_MS = 300; // a click or key that was meant for what stood here before must not decide
const HELLO_MS = 250;
const HELLO_TRIES = 5;
let cards = 0;

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = `aiso-${name}`;
  if (text !== undefined) node.textContent = text;
  return node;
}

function whyNotJson(text) {
  try {
    const value = JSON.parse(text);
    const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
    return isObject ? "" : "This must be a JSON object: { … }";
  } catch (error) {
    return `This is not valid JSON: ${error.message}`;
  }
}

function clock(seconds) {
  const left = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")} left`;
}

// One argument, or all the rest as JSON.
function makeField(field, key, changed) {
  const row = make("div", "field");
  const label = make("label", "label", field.label);
  const badge = make("span", "edited", "edited");
  const lines = field.text.split("\n").length;
  const area = make("textarea", "text");
  const problem = make("div", "problem");
  label.htmlFor = area.id = `${key}-text`;
  if (lines > 12) label.append(make("span", "lines", ` ${lines} lines`));
  label.append(badge);
  badge.hidden = true;
  area.value = field.text;
  area.rows = Math.min(lines, 18);
  area.spellcheck = false;
  area.readOnly = !field.editable;
  if (field.kind === "secret") area.classList.add("aiso-masked");
  area.setAttribute("autocomplete", "off");
  area.setAttribute("autocapitalize", "off");
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  row.append(label, area, problem);
  if (field.note) row.append(make("div", "note", field.note));

  const self = {
    row,
    area,
    edited: () => area.value !== field.text,
    name: field.name,
    check() {
      const why = field.kind === "json" && self.edited() ? whyNotJson(area.value) : "";
      self.complain(why);
      return !why;
    },
    complain(why) {
      problem.textContent = why;
      problem.hidden = !why;
      area.setAttribute("aria-invalid", String(Boolean(why)));
    },
  };
  area.addEventListener("input", () => {
    badge.hidden = !self.edited();
    self.check();
    changed();
  });
  return self;
}

function makeButton(name, text, letter) {
  const button = make("button", `button aiso-${name}`, text);
  button.type = "button";
  button.setAttribute("aria-keyshortcuts", `Alt+${letter}`);
  const shown = make("span", "key", `Alt+${letter}`);
  shown.setAttribute("aria-hidden", "true"); // told by aria-keyshortcuts
  button.append(shown);
  return button;
}

function makeHead(view, key, time) {
  const head = make("div", "head");
  const title = make("div", "title");
  const tool = make("code", "tool", view.tool);
  title.append("Run ", tool, "?");
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

// How far an approval reaches: the words of each choice are read before it can be taken.
function makeRemember(view, key, decide) {
  const panel = make("fieldset", "remember");
  const done = makeButton("remember-done", "Approve and remember", "S");
  const back = make("button", "button", "Back");
  panel.append(make("legend", "", "Until the session ends, do not ask again for"));
  const radios = view.remember.map(({ scope, words }, i) => {
    const row = make("label", "choice");
    const radio = make("input");
    radio.type = "radio";
    radio.name = `${key}-scope`;
    radio.value = scope;
    radio.checked = i === 0;
    row.append(radio, make("span", "words", words));
    panel.append(row);
    return radio;
  });
  const buttons = make("div", "foot");
  back.type = "button";
  buttons.append(make("div", "note aiso-hint", "%approvals lists and takes back."), back, done);
  panel.append(buttons);
  panel.hidden = true;
  done.addEventListener("click", () => decide("approve", self.chosen()));
  const self = {
    panel,
    back,
    focus: () => radios[0].focus(),
    chosen: () => radios.find((radio) => radio.checked).value,
  };
  return self;
}

// What one call and several have in common: answering once, not too early, in time, and by keyboard.
function makeFrame(root, model, id, foot, keys) {
  const status = make("div", "status");
  const time = make("span", "time");
  let armedAt = 0;
  let decided = false;
  let endsAt = null;
  status.setAttribute("role", "status");
  time.setAttribute("aria-hidden", "true");

  function arm() {
    armedAt = performance.now() + ARM_MS;
  }

  function lock(locked) {
    decided = locked;
    for (const node of root.querySelectorAll("button, input, textarea")) node.disabled = locked;
  }

  root.onkeydown = (event) => {
    event.stopPropagation(); // the notebook's own shortcuts delete cells
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.repeat) return;
    // With Alt some layouts give another character; then the place of the key says which it is.
    const letter = /^[a-z]$/i.test(event.key) ? event.key.toLowerCase() : event.code.slice(3).toLowerCase();
    if (!keys[letter]) return;
    event.preventDefault();
    keys[letter]();
  };

  // Coming into view counts as appearing.
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) arm();
  });
  watcher.observe(foot);
  arm();

  function tick() {
    if (endsAt === null) return;
    const left = (endsAt - performance.now()) / 1000;
    time.textContent = decided ? "" : clock(left);
    time.classList.toggle("aiso-soon", left < 30);
  }
  const timer = setInterval(tick, 500);

  return {
    id,
    status,
    time,
    arm,
    ready: () => !decided && performance.now() >= armedAt,
    send(words, decision) {
      lock(true);
      status.textContent = words;
      model.send({ type: "decision", id, ...decision });
    },
    unlock() {
      lock(false);
      status.textContent = "";
    },
    remain(seconds) {
      endsAt = seconds === null ? null : performance.now() + seconds * 1000;
      tick();
    },
    end() {
      clearInterval(timer);
      watcher.disconnect();
    },
  };
}

function makeReason() {
  const reason = make("input", "reason");
  reason.type = "text";
  reason.placeholder = "Reason (optional)";
  reason.title = "Told to whoever asks, and kept with the decision";
  reason.setAttribute("aria-label", "Reason (optional)");
  reason.maxLength = 2000;
  return reason;
}

function makeCard(root, model, id, view) {
  const key = `aiso-${++cards}`;
  const foot = make("div", "foot");
  const reason = makeReason();
  const deny = makeButton("deny", "Deny", "D");
  const approve = makeButton("approve", "Approve", "A");
  const more = makeButton("more", "Approve and remember…", "S");
  const fields = view.fields.map((field, i) => makeField(field, `${key}-${i}`, changed));
  const offers = view.remember.length > 0;
  const remember = offers ? makeRemember(view, key, decide) : null;
  const card = makeFrame(root, model, id, foot, {
    a: () => decide("approve"),
    d: () => decide("deny"),
    s: () => offers && (remember.panel.hidden ? open(true) : decide("approve", remember.chosen())),
  });
  const head = makeHead(view, key, card.time);

  root.dataset.effect = view.effect;
  root.setAttribute("aria-labelledby", `${key}-title`);
  foot.append(reason, deny, ...(offers ? [more] : []), approve);
  root.replaceChildren(head, makeWhy(view), ...fields.map((field) => field.row), foot);
  if (offers) {
    more.setAttribute("aria-expanded", "false");
    more.addEventListener("click", () => open(remember.panel.hidden));
    remember.back.addEventListener("click", () => open(false));
    root.append(remember.panel);
  }
  root.append(card.status);

  function anyEdited() {
    return fields.some((field) => field.edited());
  }

  function open(wanted) {
    if (wanted && (more.disabled || !card.ready())) return;
    remember.panel.hidden = !wanted;
    more.setAttribute("aria-expanded", String(wanted));
    if (wanted) {
      card.arm(); // nobody has read the words yet
      remember.focus();
    } else more.focus();
  }

  function changed() {
    approve.firstChild.textContent = anyEdited() ? "Approve edited" : "Approve";
    if (!offers) return;
    more.disabled = anyEdited();
    more.title = more.disabled ? "Edited arguments are approved for this one call only" : "";
    if (more.disabled && !remember.panel.hidden) {
      remember.panel.hidden = true;
      more.setAttribute("aria-expanded", "false");
    }
  }

  function decide(outcome, scope = null) {
    if (!card.ready() || (scope !== null && anyEdited())) return;
    const edits = {};
    if (outcome === "approve") {
      const wrong = fields.filter((field) => !field.check());
      if (wrong.length) return wrong[0].area.focus();
      for (const field of fields) if (field.edited()) edits[field.name] = field.area.value;
    }
    const words = outcome === "approve" ? "Approved." : "Denied.";
    card.send(words, { outcome, edits, reason: reason.value, remember: scope });
  }

  approve.addEventListener("click", () => decide("approve"));
  deny.addEventListener("click", () => decide("deny"));
  card.invalid = (message) => {
    card.unlock();
    changed();
    (fields.find((field) => field.edited()) ?? fields[0]).complain(message);
  };
  return card;
}

// One call among several: what it is in a line, the rest on demand.
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
  more.append(make("div", "about", row.place));
  for (const field of row.fields) {
    more.append(make("div", "label", field.label), make("pre", "text", field.text));
    if (field.note) more.append(make("div", "note", field.note));
  }
  node.append(label, more);
  return { node, box, id: row.id };
}

function makeBatch(root, model, id, view) {
  const key = `aiso-${++cards}`;
  const foot = make("div", "foot");
  const head = make("div", "head");
  const title = make("div", "title", `Run these ${view.rows.length} calls?`);
  const reason = makeReason();
  const deny = makeButton("deny", "Deny all", "D");
  const approve = makeButton("approve", "Approve selected", "A");
  const rows = view.rows.map((row) => makeRow(row, changed));
  const problem = make("div", "problem");
  const card = makeFrame(root, model, id, foot, { a: () => decide("approve"), d: () => decide("deny") });

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
    const words = outcome === "approve" ? "Approved what is selected." : "Denied.";
    card.send(words, { outcome, selected: selected(), reason: reason.value });
  }

  approve.addEventListener("click", () => decide("approve"));
  deny.addEventListener("click", () => decide("deny"));
  card.invalid = (message) => {
    card.unlock();
    changed();
    problem.textContent = message;
  };
  return card;
}

function render({ model, el }) {
  const root = make("div", "card");
  root.setAttribute("role", "group");
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  root.tabIndex = 0;
  root.append(make("div", "why", "A tool asks to run …"));
  el.append(root);
  let card = null;

  function onMessage(message) {
    if (message.type === "show") {
      const build = message.view.rows ? makeBatch : makeCard;
      if (card === null) card = build(root, model, message.id, message.view);
      card.remain(message.remaining_s);
    } else if (message.type === "invalid" && card !== null && card.id === message.id) {
      card.invalid(message.message);
    }
  }
  model.on("msg:custom", onMessage);

  let tries = 0;
  const hello = setInterval(greet, HELLO_MS);
  function greet() {
    if (card !== null || tries++ >= HELLO_TRIES) return clearInterval(hello);
    model.send({ type: "hello" });
  }
  greet();

  return () => {
    clearInterval(hello);
    model.off("msg:custom", onMessage);
    if (card !== null) card.end();
  };
}

export default { render };
