const ARM_MS = 300; // a click or key that was meant for what stood here before must not decide

// What one call and several have in common: answering once, not too early, in time, and by keyboard.
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
    // With Alt some layouts give another character; then the place of the key says which it is.
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
    send(words, decision) {
      lock(true);
      status.textContent = words;
      model.send({ type: "decision", id, ...decision });
    },
    unlock() {
      lock(false);
      status.textContent = "";
    },
    remain(seconds) {
      endsAt = seconds === null ? null : performance.now() + seconds * 1000;
      tick();
    },
    // What was decided, here or elsewhere, in place of the question.
    done(words, lines) {
      lock(true);
      root.replaceChildren(make("div", "title", words), ...lines.map((line) => make("div", "about", line)));
    },
    end() {
      clearInterval(timer);
      watcher.disconnect();
    },
  };
}

function makeReason() {
  const reason = make("input", "reason");
  reason.type = "text";
  reason.placeholder = "Reason (optional)";
  reason.title = "Told to whoever asks, and kept with the decision";
  reason.setAttribute("aria-label", "Reason (optional)");
  reason.maxLength = 2000;
  return reason;
}
