const HELLO_MS = 250;
const HELLO_TRIES = 5;
const LATE_HELLO_MS = 5000; // then, for a kernel that is busy; few, as each waits in its queue
const LATE_HELLO_TRIES = 24;

// Entry point of the widget: greet the kernel until it shows a view, then pass messages on to the card.
function render({ model, el }) {
  const root = make("div", "card");
  const page = pageName(model);
  root.setAttribute("role", "group");
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  root.tabIndex = 0;
  root.append(make("div", "why", "A question comes …"));
  el.append(root);
  let card = null;
  let ended = false; // decided or gone
  let modelId = null; // of the widget, once the kernel has said it
  let stopContinuing = null;

  function onMessage(message) {
    if (message.type === "who") {
      model.send({ type: "here", page });
    } else if (ended) {
      return;
    } else if (message.type === "show") {
      const { rows, question } = message.view;
      const build = rows ? makeBatch : question ? makeQuestion : makeCard;
      modelId = message.cell.modelId;
      if (card === null) {
        card = build(root, model, message);
        card.wait();
      }
      card.setRemaining(message.remaining_s);
      // The first page that renders the card is the one that ran the cell, and gets what the cell shows.
      if (message.first !== page) stopContinuing ??= continueOutputs(model, message.cell, tellStored);
    } else if (message.type === "typed") {
      root.replaceChildren(make("div", "why", message.message));
    } else if (message.type === "done") {
      ended = true;
      showRecord(message);
    } else if (card !== null && card.id === message.id) {
      if (message.type === "invalid") card.showInvalid(message.message);
      if (message.type === "accepted") card.confirm(message.words);
    }
  }
  model.on("msg:custom", onMessage);

  // The document has the record now; otherwise the kernel shows it again with the next cell.
  function tellStored() {
    model.send({ type: "stored" });
  }

  function showRecord(message) {
    if (replaceOutput(model, message.modelId, message.bundle)) return tellStored();
    if (card !== null) card.showRecord(message.words, message.lines);
    else paintRecord(root, message.words, message.lines);
  }

  const stopWatching = watchKernel(model, (why) => {
    if (ended) return;
    ended = true;
    stopContinuing?.();
    if (card === null) paintRecord(root, `This question is gone: ${why}.`);
    else card.showGone(why);
    storeGone(model, modelId, root);
  });

  let tries = 0;
  let hello = null;
  function greet() {
    if (card !== null || ended || tries++ >= HELLO_TRIES + LATE_HELLO_TRIES) return;
    if (tries > HELLO_TRIES) root.textContent = "No answer yet: the kernel that asks may be busy.";
    try {
      model.send({ type: "hello", page });
    } catch {
      root.textContent = "This question is gone: the kernel that asked cannot be reached.";
      return;
    }
    hello = setTimeout(greet, tries < HELLO_TRIES ? HELLO_MS : LATE_HELLO_MS);
  }
  greet();

  return () => {
    clearTimeout(hello);
    stopWatching();
    model.off("msg:custom", onMessage);
    if (card !== null) card.dispose();
  };
}

export default { render };
