// One argument: how it is shown, edited and checked. The kernel checks once more.
const RAW = ["shell", "python", "text"];

function validationError(field, text) {
  if (RAW.includes(field.kind)) return lengthError(field.limits, [...text].length);
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return field.kind === "number" ? "This must be a number" : `This is not valid JSON: ${error.message}`;
  }
  return field.kind === "number" ? numberError(field.limits ?? {}, value) : "";
}

function numberError({ least, most, whole }, value) {
  if (typeof value !== "number") return "This must be a number";
  if (whole && !Number.isInteger(value)) return "This must be a whole number";
  if (least != null && value < least) return `This must be at least ${least}`;
  return most != null && value > most ? `This must be at most ${most}` : "";
}

function lengthError(limits, length) {
  if (limits?.least != null && length < limits.least) {
    return limits.least === 1 ? "This must not be empty" : `This needs at least ${limits.least} characters`;
  }
  return limits?.most != null && length > limits.most ? `This may have ${limits.most} characters` : "";
}

// Editors: `node` to insert, `focus` to label and focus, `text()` and `set(text)`.
function makeInput(field) {
  if (field.kind === "boolean") return makeBox(field);
  if (field.kind === "choice") return makeChoice(field);
  if (field.kind === "number") return makeLine(field);
  return makeArea(field);
}

function makeBox(field) {
  const box = make("input", "box");
  box.type = "checkbox";
  box.checked = field.text === "true";
  return {
    node: box,
    focus: box,
    text: () => String(box.checked),
    set: (text) => (box.checked = text === "true"),
  };
}

function makeChoice(field) {
  const select = make("select", "input");
  for (const choice of field.choices) {
    const words = choice.startsWith('"') ? JSON.parse(choice) : choice;
    const option = make("option", "", words);
    option.value = choice;
    select.append(option);
  }
  select.value = field.text;
  return { node: select, focus: select, text: () => select.value, set: (text) => (select.value = text) };
}

function makeLine(field) {
  const line = make("input", "input");
  line.type = "text";
  line.inputMode = "decimal";
  line.value = field.text;
  line.autocomplete = "off";
  return { node: line, focus: line, text: () => line.value, set: (text) => (line.value = text) };
}

// A transparent text area over a layer that is read: the layer gives the size, and colours while unedited.
function makeArea(field) {
  const stack = make("div", "stack");
  const shown = make("pre", "layer");
  const area = make("textarea", "layer aiso-area");
  shown.setAttribute("aria-hidden", "true");
  area.value = field.text;
  area.rows = 1;
  area.spellcheck = false;
  area.readOnly = !field.editable;
  area.setAttribute("autocomplete", "off");
  area.setAttribute("autocapitalize", "off");
  if (field.kind === "secret") stack.classList.add("aiso-masked");
  stack.append(shown, area);

  function mirror() {
    const whole = field.pieces && field.pieces.map((piece) => piece[1]).join("") === area.value;
    paint(shown, whole ? field.pieces : [["", area.value]]);
    shown.append("\n"); // the last line has a height even when it is empty
    area.style.height = "";
    if (area.scrollHeight > area.clientHeight) area.style.height = `${area.scrollHeight}px`;
  }
  area.addEventListener("input", mirror);
  mirror();
  return {
    node: stack,
    focus: area,
    shown: mirror, // it has a size only now
    text: () => area.value,
    set(text) {
      area.value = text;
      mirror();
    },
  };
}

function makeField(field, key, changed) {
  const row = make("div", `field aiso-is-${field.kind}`);
  const label = make("label", "label", field.label);
  const about = make("div", "about aiso-hint-line", field.about);
  const was = make("div", "was");
  const problem = make("div", "problem");
  const input = makeInput(field);
  const lines = field.text.split("\n").length;
  const self = {
    row,
    focus: () => input.focus.focus(),
    shown: () => input.shown?.(),
    name: field.name,
    kind: field.kind,
    text: () => input.text(),
    edited: () => input.text() !== field.text,
    check() {
      const error = self.edited() ? validationError(field, input.text()) : "";
      self.showProblem(error);
      return !error;
    },
    showProblem(error) {
      problem.textContent = error;
      problem.hidden = !error;
      input.focus.setAttribute("aria-invalid", String(Boolean(error)));
    },
  };

  label.htmlFor = input.focus.id = `${key}-text`;
  about.id = `${key}-about`;
  about.title = field.about;
  if (field.about) input.focus.setAttribute("aria-describedby", about.id);
  problem.setAttribute("role", "alert");
  problem.hidden = was.hidden = true;
  const old = make("del", "old", field.text.length > 300 ? `${field.text.slice(0, 300)}…` : field.text);
  was.append(make("span", "was-word", "was "), old, makeSmall("Put back", () => {
    input.set(field.text);
    update();
    input.focus.focus();
  }));

  function update() {
    was.hidden = !self.edited();
    row.classList.toggle("aiso-is-edited", self.edited());
    self.check();
    changed();
  }
  input.focus.addEventListener("input", update);

  const head = make("div", "field-head");
  head.append(label, about);
  if (field.folded) {
    const fold = make("details", "fold");
    fold.append(make("summary", "fold-title", `${field.label}, ${lines} ${lines === 1 ? "line" : "lines"}`), head, input.node);
    row.append(fold, was, problem);
  } else row.append(head, input.node, was, problem);
  if (field.note) row.append(make("div", "note", field.note));
  return self;
}

// All arguments as fields, or as JSON instead.
function makeForm(view, key, changed) {
  const node = make("div", "form");
  const fields = view.fields.map((field, i) => makeField(field, `${key}-${i}`, changed));
  const grid = make("div", "fields");
  grid.append(...fields.map((field) => field.row));
  node.append(grid);
  let json = null; // the field that replaces the others
  const open = fields.filter((field) => field.kind !== "secret");

  function asJson() {
    const pairs = open.map((field) => {
      const text = RAW.includes(field.kind) ? JSON.stringify(field.text()) : field.text();
      return `  ${JSON.stringify(field.name)}: ${text.replaceAll("\n", "\n  ")}`;
    });
    return pairs.length ? `{\n${pairs.join(",\n")}\n}` : "{}";
  }

  function toggle() {
    if (json?.edited()) return; // the edits would be lost
    if (json === null) {
      const text = asJson();
      const about = "All arguments as one JSON object; here arguments can be added and left out.";
      json = makeField(
        { name: "", label: "arguments", kind: "json", text, about, editable: true },
        `${key}-json`,
        () => {
          button.disabled = json.edited();
          changed();
        },
      );
      node.append(json.row);
    } else {
      json.row.remove();
      json = null;
    }
    for (const field of open) field.row.hidden = json !== null;
    button.textContent = json === null ? "Edit as JSON" : "Back to fields";
    changed();
  }
  const button = makeSmall("Edit as JSON", toggle);
  if (view.as_json) node.append(button);

  return {
    node,
    shown() {
      for (const field of fields) field.shown();
      open[0]?.focus();
    },
    edited: () => fields.some((field) => field.edited()) || Boolean(json?.edited()),
    invalidFields: () => (json === null ? open : [json]).filter((field) => !field.check()),
    edits() {
      if (json !== null) return { edits: {}, whole: json.edited() || open.some((f) => f.edited()) ? json.text() : null };
      return {
        edits: Object.fromEntries(open.filter((f) => f.edited()).map((f) => [f.name, f.text()])),
        whole: null,
      };
    },
    showProblem(error) {
      const field = json ?? fields.find((one) => one.edited()) ?? fields[0];
      if (field === undefined) return false;
      field.showProblem(error);
      return true;
    },
  };
}
