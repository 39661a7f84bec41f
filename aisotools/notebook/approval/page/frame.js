// A click or key that was meant for what was here before must not decide.
const ARM_MS = 300;

// Common to all cards: one decision, not too early, with a countdown and keyboard shortcuts.
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
    send(statusText, decision) {
      lock(true);
      status.textContent = statusText;
      model.send({ type: "decision", id, ...decision });
    },
    unlock() {
      lock(false);
      status.textContent = "";
    },
    setRemaining(seconds) {
      endsAt = seconds === null ? null : performance.now() + seconds * 1000;
      tick();
    },
    // Replace the prompt by the record of its decision, made here or on another page.
    showRecord(words, lines) {
      lock(true);
      root.replaceChildren(make("div", "title", words), ...lines.map((line) => make("div", "about", line)));
    },
    dispose() {
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
