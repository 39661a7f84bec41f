// The buttons that copy an answer. They stand in stored HTML, hidden, and work while a script of ours is loaded:
// the style sheet shows them, and one listener for the whole page takes their clicks.
function copyText(text) {
  if (navigator.clipboard && globalThis.isSecureContext) return navigator.clipboard.writeText(text);
  return Promise.reject(new Error("the page may not copy"));
}

function onCopyClick(event) {
  const button = event.target instanceof Element ? event.target.closest(".aiso-copy") : null;
  const answer = button?.closest(".aiso-answer");
  const source = answer?.querySelector(".aiso-source");
  if (!source) return;
  copyText(source.textContent).then(
    () => (button.textContent = "Copied"),
    () => {
      // Then the person copies it: unfolded and selected.
      source.closest("details").open = true;
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl+C";
    },
  );
  setTimeout(() => (button.textContent = "Copy"), 3000);
}

if (!globalThis.__aisotoolsCopies) {
  globalThis.__aisotoolsCopies = true;
  addEventListener("click", onCopyClick);
}
