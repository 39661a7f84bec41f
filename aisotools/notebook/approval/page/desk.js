// A person stands in for the model, steps through a run, or picks: what was said, what can be called, buttons.
function makeSaid(said) {
  const node = make("div", "said");
  node.tabIndex = 0;
  node.setAttribute("role", "log");
  node.setAttribute("aria-label", "what was said");
  for (const [who, text] of said) node.append(make("div", "who", who), make("pre", "what", text));
  return node;
}

// One of several calls to fill in, behind a list of their names.
function makePicker(view, key, changed) {
  const node = make("div", "picks");
  const place = make("div", "picked");
  const about = make("span", "about");
  const select = make("select", "input");
  const forms = new Map();
  let form = null;
  const label = make("label", "label", view.pick_label);
  const line = make("div", "picker");
  label.htmlFor = select.id = `${key}-pick`;
  for (const [index, pick] of view.picks.entries()) {
    const option = make("option", "", pick.name);
    option.value = String(index);
    select.append(option);
  }
  line.append(label, select, about);
  function choose() {
    const index = Number(select.value);
    if (!forms.has(index)) forms.set(index, makeForm(view.picks[index], `${key}-${index}`, changed));
    form = forms.get(index);
    about.textContent = view.picks[index].about;
    place.replaceChildren(form.node);
    if (view.picks[index].schema) {
      const fold = make("details", "fold");
      fold.append(make("summary", "fold-title", "The schema, as a model sees it"), make("pre", "text", view.picks[index].schema));
      place.append(fold);
    }
    changed();
  }
  select.addEventListener("change", choose);
  if (view.picks.length > 1 || view.pick_label) node.append(line);
  node.append(place);
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

function makeWords(view, key) {
  const area = make("textarea", "reason");
  const label = make("label", "label", view.text_label);
  const node = make("div", "words-box");
  label.htmlFor = area.id = `${key}-words`;
  area.rows = 2;
  area.style.height = "auto";
  area.style.width = "100%";
  area.value = view.text ?? "";
  node.append(label, area);
  return { node, area };
}

function makeCard(root, model, id, view) {
  const key = `aiso-${++cards}`;
  const head = make("div", "head");
  const title = make("div", "title", view.title);
  const foot = make("div", "foot");
  const problem = make("div", "problem");
  const keys = {};
  for (const action of view.actions) keys[action.letter.toLowerCase()] = () => act(action.action);
  for (const index of (view.options ?? []).keys()) keys[String(index + 1)] = () => act("pick", index);
  const card = makeFrame(root, model, id, foot, keys);
  const picker = view.picks.length ? makePicker(view, key, changed) : null;
  const words = view.text_label ? makeWords(view, key) : null;
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
  const said = view.said.length ? [makeSaid(view.said)] : [];
  const options = view.options ? [makeOptions(view, act)] : [];
  root.replaceChildren(head, ...said, ...options, ...(picker ? [picker.node] : []), ...(words ? [words.node] : []), problem, foot, card.status);
  if (picker) picker.choose();
  if (said.length) said[0].scrollTop = said[0].scrollHeight;

  function changed() {
    problem.textContent = "";
  }

  function act(action, index = null) {
    if (!card.ready()) return;
    problem.textContent = "";
    const known = view.actions.find((one) => one.action === action);
    if (known?.wants === "text" && !words.area.value.trim()) {
      problem.textContent = "Write the answer first.";
      words.area.focus();
      return;
    }
    let filled = { edits: {}, whole: null };
    if (known?.wants === "call") {
      const [wrong] = picker.form().wrong();
      if (wrong) return wrong.focus();
      filled = picker.form().edits();
    }
    const pick = index ?? (picker ? picker.index() : null);
    card.send("Sent.", { action, pick, ...filled, text: words ? words.area.value : "" });
  }

  card.invalid = (message) => {
    card.unlock();
    problem.textContent = message;
  };
  return card;
}
const makeBatch = makeCard;
const makeInquiry = makeCard;
