const HELLO_MS = 250;
const HELLO_TRIES = 5;

// Entry point of the widget: greet the kernel until it shows a view, then pass messages on to the card.
function render({ model, el }) {
  const root = make("div", "card");
  const page = Math.random().toString(36).slice(2);
  root.setAttribute("role", "group");
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  root.tabIndex = 0;
  root.append(make("div", "why", "A question comes …"));
  el.append(root);
  let card = null;

  function onMessage(message) {
    if (message.type === "show") {
      const { rows, question } = message.view;
      const build = rows ? makeBatch : question ? makeQuestion : makeCard;
      if (card === null) card = build(root, model, message.id, message.view);
      card.setRemaining(message.remaining_s);
    } else if (message.type === "who") {
      model.send({ type: "here", page });
    } else if (card !== null && card.id === message.id) {
      if (message.type === "invalid") card.showInvalid(message.message);
      if (message.type === "done") card.showRecord(message.words, message.lines);
    }
  }
  model.on("msg:custom", onMessage);

  let tries = 0;
  const hello = setInterval(greet, HELLO_MS);
  function greet() {
    if (card !== null || tries++ >= HELLO_TRIES) return clearInterval(hello);
    model.send({ type: "hello", page });
  }
  greet();

  return () => {
    clearInterval(hello);
    model.off("msg:custom", onMessage);
    if (card !== null) card.dispose();
  };
}

export default { render };
