// The scope of an approval. Its choices must have been on screen before one of them can be taken.
function makeRemember(view, key, decide) {
  const panel = make("fieldset", "remember");
  const confirm = makeButton("remember-confirm", "Approve and remember", "S");
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
  buttons.append(make("div", "note aiso-hint", "%approvals lists and takes back."), back, confirm);
  panel.append(buttons);
  panel.hidden = true;
  confirm.addEventListener("click", () => decide("approve", self.scope()));
  const self = {
    panel,
    back,
    focus: () => radios[0].focus(),
    scope: () => radios.find((radio) => radio.checked).value,
  };
  return self;
}

function makeCard(root, model, question) {
  const { view } = question;
  const key = `aiso-${++cards}`;
  const foot = make("div", "foot");
  const reason = makeReason();
  const deny = makeButton("deny", "Deny", "D");
  // Writing a protected file takes more than approval of the call: the name is allowed for the workspace.
  const label = view.allow ? "Allow in this workspace" : "Approve";
  const approve = makeButton("approve", label, "A");
  const more = makeButton("more", "Approve and remember…", "S");
  const form = makeForm(view, key, changed);
  const preview = makePreview(view.preview);
  const reading = makeReading(view);
  const edit = makeSmall("Edit", () => {
    reading.hidden = edit.hidden = true;
    form.node.hidden = false;
    form.shown();
  });
  const problem = make("div", "problem");
  const offers = view.remember.length > 0;
  const remember = offers ? makeRemember(view, key, decide) : null;
  const card = makeFrame(root, model, question, foot, {
    a: () => decide("approve", approved()),
    d: () => decide("deny"),
    s: () => offers && (remember.panel.hidden ? open(true) : decide("approve", remember.scope())),
  });

  root.dataset.effect = view.effect;
  root.setAttribute("aria-labelledby", `${key}-title`);
  problem.setAttribute("role", "alert");
  if (view.allow) foot.append(make("div", "note aiso-hint", `${view.allow}, until the session ends`));
  foot.append(reason, deny, ...(offers ? [more] : []), approve);
  form.node.hidden = true;
  const facts = makeFacts(view);
  if (view.fields.some((field) => field.editable)) facts.append(edit);
  const findings = makeFindings(view.preview);
  root.replaceChildren(
    makeHead(view, key, card.time),
    preview,
    reading,
    form.node,
    findings,
    facts,
    makeWhy(view),
    problem,
    foot,
  );
  if (offers) {
    more.setAttribute("aria-expanded", "false");
    more.addEventListener("click", () => open(remember.panel.hidden));
    remember.back.addEventListener("click", () => open(false));
    root.append(remember.panel);
  }
  root.append(card.status);

  function open(shown) {
    if (shown && (more.disabled || !card.ready())) return;
    remember.panel.hidden = !shown;
    more.setAttribute("aria-expanded", String(shown));
    if (shown) {
      card.arm(); // the choices have only just appeared
      remember.focus();
    } else more.focus();
  }

  function changed() {
    const edited = form.edited();
    problem.textContent = "";
    approve.firstChild.textContent = edited ? "Approve edited" : label;
    for (const node of [preview, findings]) node.classList.toggle("aiso-stale", edited); // of the arguments before
    if (!offers) return;
    more.disabled = edited;
    more.title = edited ? "Edited arguments are approved for this one call only" : "";
    if (edited && !remember.panel.hidden) {
      remember.panel.hidden = true;
      more.setAttribute("aria-expanded", "false");
    }
  }

  function approved() {
    return view.allow && !form.edited() ? "protected" : null;
  }

  function decide(outcome, scope = null) {
    if (!card.ready() || (scope !== null && form.edited())) return;
    if (outcome === "deny") {
      card.send({ outcome, edits: {}, whole: null, reason: reason.value, remember: null });
      return;
    }
    const [invalid] = form.invalidFields();
    if (invalid) invalid.focus();
    else card.send({ outcome, ...form.edits(), reason: reason.value, remember: scope });
  }

  approve.addEventListener("click", () => decide("approve", approved()));
  deny.addEventListener("click", () => decide("deny"));
  card.showInvalid = (message) => {
    card.unlock();
    changed();
    if (!form.showProblem(message)) problem.textContent = message;
  };
  return card;
}
