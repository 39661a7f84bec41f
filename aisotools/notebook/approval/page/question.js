// A model's question: choices as buttons, or a field to type into.
function makeQuestion(root, model, message) {
  const { view } = message;
  const key = `aiso-${++cards}`;
  const foot = make("div", "foot");
  const head = make("div", "head");
  const title = make("div", "title", "A question");
  const question = make("div", "question", view.question);
  const problem = make("div", "problem");
  const none = makeButton("deny", "No answer", "D");
  const choices = view.choices.map((words, number) => {
    const button = make("button", "button aiso-answer", words);
    button.type = "button";
    button.addEventListener("click", () => answer(number));
    return button;
  });
  const field = view.choices.length ? null : make("textarea", "reason aiso-free-text");
  const send = makeButton("approve", "Answer", "A");
  const keys = { d: () => card.ready() && card.send({ outcome: "none" }) };
  if (field) keys.a = () => answer(field.value);
  const card = makeFrame(root, model, message, foot, keys);

  title.id = `${key}-title`;
  question.id = `${key}-question`;
  root.dataset.effect = "question";
  root.setAttribute("aria-labelledby", `${title.id} ${question.id}`);
  problem.setAttribute("role", "alert");
  head.append(title, make("span", "chip", `from ${view.who}`), card.time);
  const hint = make("div", "note aiso-hint", "The answer goes to the model: no passwords or keys.");
  foot.append(hint, none);
  root.replaceChildren(head, question);
  if (field) {
    field.rows = 1;
    field.maxLength = view.longest;
    field.placeholder = "Your answer";
    field.setAttribute("aria-labelledby", question.id);
    field.addEventListener("input", () => {
      send.disabled = !field.value.trim();
      field.style.height = "";
      field.style.height = `${field.scrollHeight + 2}px`;
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.altKey || event.isComposing) return;
      event.preventDefault();
      answer(field.value);
    });
    send.disabled = true;
    foot.append(send);
    root.append(field);
  } else {
    const list = make("div", "choices");
    list.setAttribute("role", "group");
    list.setAttribute("aria-labelledby", question.id);
    list.append(...choices);
    list.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      const here = choices.indexOf(document.activeElement);
      if (!step || here < 0) return;
      event.preventDefault();
      choices[(here + step + choices.length) % choices.length].focus();
    });
    root.append(list);
  }
  root.append(problem, foot, card.status);

  function answer(value) {
    if (!card.ready() || (field && !value.trim())) return;
    card.send({ outcome: "answer", answer: value });
  }

  send.addEventListener("click", () => answer(field.value));
  none.addEventListener("click", keys.d);
  card.showInvalid = (message) => {
    card.unlock();
    problem.textContent = message;
  };
  return card;
}
