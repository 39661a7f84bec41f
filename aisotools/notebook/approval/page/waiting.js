// Questions that wait find the person: the page scrolls to the first one, the title of the page counts them, a
// button leads to one that is out of view, and a notification tells somebody who looks elsewhere. One for all
// cards of a window: each card's script is a module of its own.
function makeWaiting() {
  const cards = new Map(); // from the root of a card to how it is called
  const button = make("button", "waiting");
  let busyAt = -Infinity; // when the person last scrolled or typed, in the time of `Date.now`
  let prefix = "";
  let sound = null;
  button.type = "button";
  button.hidden = true;
  button.addEventListener("click", () => {
    const root = target();
    if (root === null) return;
    root.scrollIntoView({ block: "center" });
    root.focus({ preventScroll: true });
  });

  function noteBusy() {
    busyAt = Date.now();
  }
  // Also somebody who types: what they write must not move away from under them.
  for (const type of ["wheel", "touchmove", "keydown"]) {
    addEventListener(type, noteBusy, { capture: true, passive: true });
  }
  // Dragging a scroll bar is a press on what scrolls itself, beside what it shows.
  addEventListener("pointerdown", (event) => {
    const node = event.target;
    if (node instanceof Element && event.offsetX > node.clientWidth && node.scrollHeight > node.clientHeight) noteBusy();
  }, { capture: true, passive: true });

  // The front end writes the title anew whenever another document comes to the front.
  const titles = new MutationObserver(writeTitle);
  const inView = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) inView.add(entry.target);
      else inView.delete(entry.target);
    }
    update();
  });

  function writeTitle() {
    const bare = document.title.startsWith(prefix) ? document.title.slice(prefix.length) : document.title;
    const wanted = cards.size ? `(${cards.size}) ` : "";
    prefix = wanted;
    if (document.title !== wanted + bare) document.title = wanted + bare;
  }

  // The first card that waits out of view, in the order of the page; else the first one.
  function target() {
    const roots = [...cards.keys()].sort((a, b) => (a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
    return roots.find((root) => !inView.has(root)) ?? roots[0] ?? null;
  }

  function update() {
    writeTitle();
    const hidden = [...cards.keys()].filter((root) => !inView.has(root));
    button.hidden = hidden.length === 0;
    if (button.hidden) return;
    const root = target();
    const reachable = root.checkVisibility();
    const direction = root.getBoundingClientRect().top < 0 ? "↑" : "↓";
    button.textContent = `${cards.size} waiting ${reachable ? direction : `in ${cards.get(root).place || "another tab"}`}`;
    button.disabled = !reachable;
    if (!button.isConnected) document.body.append(button);
  }

  function remove(root) {
    cards.delete(root);
    inView.delete(root);
    watcher.unobserve(root);
    if (!cards.size) titles.disconnect();
  }

  function beep() {
    try {
      sound ??= new AudioContext();
      const tone = sound.createOscillator();
      const volume = sound.createGain();
      volume.gain.value = 0.05;
      tone.frequency.value = 660;
      tone.connect(volume).connect(sound.destination);
      tone.start();
      tone.stop(sound.currentTime + 0.15);
    } catch {
      sound = null; // no audio device: a sound was a wish, not a promise
    }
  }

  return {
    // A card waits. `age_ms` is how long ago its cell was run; `notify` what the person has asked for.
    add(root, { title, place, age_ms, notify }) {
      if (cards.has(root)) return;
      const isFirst = cards.size === 0;
      cards.set(root, { title, place });
      watcher.observe(root);
      if (isFirst) titles.observe(document.querySelector("title") ?? document.head, { childList: true, characterData: true, subtree: true });
      if (isFirst && busyAt < Date.now() - age_ms) root.scrollIntoView({ block: "nearest" });
      const away = document.hidden || !root.checkVisibility();
      if (notify.includes("sound")) beep();
      if (notify.includes("desktop") && away && globalThis.Notification?.permission === "granted") {
        new Notification("A question waits", { body: [title, place].filter(Boolean).join(" · "), tag: "aisotools" });
      }
      update();
    },
    remove(root) {
      if (!cards.has(root)) return;
      remove(root);
      update();
    },
  };
}

function waiting() {
  return (globalThis.__aisotoolsWaiting ??= makeWaiting());
}

// Browsers ask for the permission only while somebody clicks.
function askForNotifications(notify) {
  if (notify.includes("desktop") && globalThis.Notification?.permission === "default") void Notification.requestPermission();
}
