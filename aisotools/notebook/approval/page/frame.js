// A click or key that was meant for what was here before must not decide.
const ARM_MS = 300;

// How long the kernel may take to confirm a decision before the card says that it has not.
const CONFIRM_MS = 2000;

// Common to all cards: one decision, not too early, with a countdown and keyboard shortcuts. A card says only
// what the kernel has confirmed: a click sends, and what was decided is what the kernel answers.
function makeFrame(root, model, question, foot, keys) {
  const { id, nonce } = question;
  const status = make("div", "status");
  const time = make("span", "time");
  let armedAt = 0;
  let decided = false; // here
  let confirmed = false; // by the kernel
  let gone = false;
  let endsAt = null;
  let silence = null; // the timer of a decision that is not confirmed yet
  status.setAttribute("role", "status");
  time.setAttribute("aria-hidden", "true");

  function arm() {
    armedAt = performance.now() + ARM_MS;
  }

  // Nobody is waited for any more, neither the person nor the kernel.
  function settle() {
    waiting().remove(root);
    clearTimeout(silence);
  }

  function lock(locked) {
    decided = locked;
    for (const node of root.querySelectorAll("button, input, textarea, select")) node.disabled = locked;
  }

  root.onkeydown = (event) => {
    event.stopPropagation(); // the notebook's own shortcuts delete cells
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.repeat) return;
    // With Alt some keyboard layouts produce another character; then the key code tells the letter.
    const letter = /^[a-z]$/i.test(event.key) ? event.key.toLowerCase() : event.code.slice(3).toLowerCase();
    if (!keys[letter]) return;
    event.preventDefault();
    keys[letter]();
  };

  // Coming into view counts as appearing, until the person has done something on the card.
  let known = false;
  for (const type of ["pointerdown", "input"]) root.addEventListener(type, () => (known = true), { capture: true });
  const watcher = new IntersectionObserver((entries) => {
    if (!known && entries.some((entry) => entry.isIntersecting)) arm();
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
    // The card waits for the person from now on, or again.
    wait() {
      waiting().add(root, { ...question.attention, place: documentOf(model)?.path ?? "" });
    },
    send(decision) {
      lock(true);
      settle();
      askForNotifications(question.attention.notify);
      status.textContent = "Sending…";
      try {
        model.send({ type: "decision", id, nonce, ...decision });
      } catch {
        this.showGone("the kernel that asked cannot be reached");
        return;
      }
      silence = setTimeout(() => {
        status.textContent = "No answer yet. The kernel may be busy: it takes the decision when it comes to it.";
      }, CONFIRM_MS);
    },
    // The kernel has taken a decision, made here or on another page.
    confirm(words) {
      settle();
      confirmed = true;
      lock(true);
      status.textContent = words;
    },
    unlock() {
      clearTimeout(silence);
      lock(false);
      this.wait();
      status.textContent = "";
    },
    setRemaining(seconds) {
      endsAt = seconds === null ? null : performance.now() + seconds * 1000;
      tick();
    },
    // Replace the prompt by the record of its decision, made here or on another page.
    showRecord(words, lines) {
      settle();
      lock(true);
      paintRecord(root, words, lines);
    },
    // Nothing can be decided here any more.
    showGone(why) {
      if (gone) return;
      gone = true;
      let sent = decided ? "Your decision was sent, but the kernel did not confirm it." : "It was not answered.";
      if (confirmed) sent = "Your decision had arrived.";
      this.showRecord(`This question is gone: ${why}.`, [sent]);
    },
    dispose() {
      settle();
      clearInterval(timer);
      watcher.disconnect();
    },
  };
}

function makeReason() {
  const reason = make("input", "reason");
  reason.type = "text";
  reason.placeholder = "Reason (optional)";
  reason.title = "Sent to whoever asks, and stored with the decision";
  reason.setAttribute("aria-label", "Reason (optional)");
  reason.maxLength = 2000;
  return reason;
}
