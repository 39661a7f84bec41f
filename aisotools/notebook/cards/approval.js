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
  button.append(make("span", "key", `Alt+${letter}`));
  return button;
}

function makeHead(view, key) {
  const head = make("div", "head");
  const title = make("div", "title");
  const tool = make("code", "tool", view.tool);
  title.append("Run ", tool, "?");
  title.id = `${key}-title`;
  const place = make("span", view.unconfined ? "chip aiso-unconfined" : "chip", view.place);
  const time = make("span", "time");
  time.setAttribute("aria-hidden", "true");
  head.append(title, make("span", "chip aiso-effect", view.effect_words), place, time);
  return { head, time };
}

function makeWhy(view) {
  const why = make("div", "why");
  why.append(make("div", "about", [view.about, view.who].filter(Boolean).join(" · ")));
  for (const reason of view.reasons) why.append(make("div", "", reason));
  return why;
}

function makeCard(root, model, id, view) {
  const key = `aiso-${++cards}`;
  const { head, time } = makeHead(view, key);
  const foot = make("div", "foot");
  const reason = make("input", "reason");
  const deny = makeButton("deny", "Deny", "D");
  const approve = makeButton("approve", "Approve", "A");
  const status = make("div", "status");
  const fields = view.fields.map((field, i) => makeField(field, `${key}-${i}`, changed));
  let armedAt = performance.now() + ARM_MS;
  let decided = false;
  let endsAt = null;

  root.dataset.effect = view.effect;
  root.setAttribute("aria-labelledby", `${key}-title`);
  reason.type = "text";
  reason.placeholder = "Reason (optional)";
  reason.title = "Told to whoever asks, and kept with the decision";
  reason.setAttribute("aria-label", "Reason (optional)");
  reason.maxLength = 2000;
  status.setAttribute("role", "status");
  foot.append(reason, deny, approve);
  root.replaceChildren(head, makeWhy(view), ...fields.map((field) => field.row), foot, status);

  function changed() {
    approve.firstChild.textContent = fields.some((field) => field.edited()) ? "Approve edited" : "Approve";
  }

  function lock(locked) {
    decided = locked;
    for (const node of root.querySelectorAll("button, input, textarea")) node.disabled = locked;
  }

  function decide(outcome) {
    if (decided || performance.now() < armedAt) return;
    const edits = {};
    if (outcome === "approve") {
      const wrong = fields.filter((field) => !field.check());
      if (wrong.length) return wrong[0].area.focus();
      for (const field of fields) if (field.edited()) edits[field.name] = field.area.value;
    }
    lock(true);
    status.textContent = outcome === "approve" ? "Approved." : "Denied.";
    model.send({ type: "decision", id, outcome, edits, reason: reason.value });
  }

  approve.addEventListener("click", () => decide("approve"));
  deny.addEventListener("click", () => decide("deny"));
  root.onkeydown = (event) => {
    event.stopPropagation(); // the notebook's own shortcuts delete cells
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.repeat) return;
    // With Alt some layouts give another character; then the place of the key says which it is.
    const letter = /^[a-z]$/i.test(event.key) ? event.key.toLowerCase() : event.code.slice(3).toLowerCase();
    const outcome = { a: "approve", d: "deny" }[letter];
    if (!outcome) return;
    event.preventDefault();
    decide(outcome);
  };

  // Coming into view counts as appearing.
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) armedAt = performance.now() + ARM_MS;
  });
  watcher.observe(foot);

  function tick() {
    if (endsAt === null) return;
    const left = (endsAt - performance.now()) / 1000;
    time.textContent = decided ? "" : clock(left);
    time.classList.toggle("aiso-soon", left < 30);
  }
  const timer = setInterval(tick, 500);

  return {
    id,
    remain(seconds) {
      endsAt = seconds === null ? null : performance.now() + seconds * 1000;
      tick();
    },
    invalid(message) {
      lock(false);
      status.textContent = "";
      fields[fields.length - 1].complain(message);
    },
    end() {
      clearInterval(timer);
      watcher.disconnect();
    },
  };
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
      if (card === null) card = makeCard(root, model, message.id, message.view);
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
