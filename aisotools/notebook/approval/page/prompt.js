// A form: a transcript, calls to fill in or to choose from, a text field, buttons.
function makeTranscript(transcript) {
  const node = make("div", "transcript");
  node.tabIndex = 0;
  node.setAttribute("role", "log");
  node.setAttribute("aria-label", "transcript");
  for (const [speaker, text] of transcript) {
    node.append(make("div", "speaker", speaker), make("pre", "utterance", text));
  }
  return node;
}

// One of several calls to fill in, behind a list of their names.
function makePicker(view, key, changed) {
  const node = make("div", "picks");
  const slot = make("div", "picked");
  const about = make("span", "about");
  const select = make("select", "input");
  const forms = new Map();
  let form = null;
  const label = make("label", "label", view.calls_label);
  const line = make("div", "picker");
  label.htmlFor = select.id = `${key}-pick`;
  for (const [index, call] of view.calls.entries()) {
    const option = make("option", "", call.name);
    option.value = String(index);
    select.append(option);
  }
  line.append(label, select, about);
  function choose() {
    const index = Number(select.value);
    if (!forms.has(index)) forms.set(index, makeForm(view.calls[index], `${key}-${index}`, changed));
    form = forms.get(index);
    about.textContent = view.calls[index].about;
    slot.replaceChildren(form.node);
    if (view.calls[index].schema) {
      const fold = make("details", "fold");
      fold.append(make("summary", "fold-title", "The schema, as a model sees it"), make("pre", "text", view.calls[index].schema));
      slot.append(fold);
    }
    changed();
  }
  select.addEventListener("change", choose);
  if (view.calls.length > 1 || view.calls_label) node.append(line);
  node.append(slot);
  return { node, choose, form: () => form, index: () => Number(select.value) };
}

function makeOptions(view, act) {
  const node = make("div", "options");
  for (const [index, option] of view.options.entries()) {
    const button = make("button", "button aiso-option", `${index + 1}. ${option}`);
    button.type = "button";
    button.setAttribute("aria-keyshortcuts", `Alt+${index + 1}`);
    button.addEventListener("click", () => act("pick", index));
    node.append(button);
  }
  return node;
}

function makeTextField(view, key) {
  const area = make("textarea", "reason");
  const label = make("label", "label", view.text_label);
  const node = make("div", "text-field");
  label.htmlFor = area.id = `${key}-text-field`;
  area.rows = 2;
  area.style.height = "auto";
  area.style.width = "100%";
  area.value = view.text ?? "";
  node.append(label, area);
  return { node, area };
}

function makeCard(root, model, question) {
  const { view } = question;
  const key = `aiso-${++cards}`;
  const head = make("div", "head");
  const title = make("div", "title", view.title);
  const foot = make("div", "foot");
  const problem = make("div", "problem");
  const keys = {};
  for (const action of view.actions) keys[action.letter.toLowerCase()] = () => act(action.action);
  for (const index of (view.options ?? []).keys()) keys[String(index + 1)] = () => act("pick", index);
  const card = makeFrame(root, model, question, foot, keys);
  const picker = view.calls.length ? makePicker(view, key, changed) : null;
  const textField = view.text_label ? makeTextField(view, key) : null;
  const buttons = view.actions.map((action) => {
    const button = makeButton(action.action === view.actions.at(-1).action ? "deny" : "approve", action.label, action.letter);
    button.addEventListener("click", () => act(action.action));
    return button;
  });

  title.id = `${key}-title`;
  root.dataset.effect = "remote_action";
  root.setAttribute("aria-labelledby", title.id);
  problem.setAttribute("role", "alert");
  head.append(title, make("span", "chip", view.chip), card.time);
  foot.append(make("div", "gap"), ...buttons);
  const transcript = view.transcript.length ? [makeTranscript(view.transcript)] : [];
  const options = view.options ? [makeOptions(view, act)] : [];
  root.replaceChildren(head, ...transcript, ...options, ...(picker ? [picker.node] : []), ...(textField ? [textField.node] : []), problem, foot, card.status);
  if (picker) picker.choose();
  if (transcript.length) transcript[0].scrollTop = transcript[0].scrollHeight;

  function changed() {
    problem.textContent = "";
  }

  function act(action, index = null) {
    if (!card.ready()) return;
    problem.textContent = "";
    const chosen = view.actions.find((one) => one.action === action);
    if (chosen?.wants === "text" && !textField.area.value.trim()) {
      problem.textContent = "Write the answer first.";
      textField.area.focus();
      return;
    }
    let edits = { edits: {}, whole: null };
    if (chosen?.wants === "call") {
      const [invalid] = picker.form().invalidFields();
      if (invalid) return invalid.focus();
      edits = picker.form().edits();
    }
    const pick = index ?? (picker ? picker.index() : null);
    card.send({ action, pick, ...edits, text: textField ? textField.area.value : "" });
  }

  card.showInvalid = (message) => {
    card.unlock();
    problem.textContent = message;
  };
  return card;
}
const makeBatch = makeCard;
const makeQuestion = makeCard;
