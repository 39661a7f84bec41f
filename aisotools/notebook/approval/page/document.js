// The notebook document around a card, where the front end has one to offer: JupyterLab and Notebook 7 do,
// through the widget manager. Elsewhere every function here does nothing, and the kernel is told so.
const WIDGET_VIEW = "application/vnd.jupyter.widget-view+json";

function documentOf(model) {
  const context = model.widget_manager?.context;
  return context?.model?.cells && context.sessionContext ? context : null;
}

// One name for a document in a window, however many views it has there: all of them show the same outputs.
function pageName(model) {
  const names = (globalThis.__aisotoolsPages ??= new WeakMap());
  const key = documentOf(model);
  const name = Math.random().toString(36).slice(2);
  if (key === null) return name;
  if (!names.has(key)) names.set(key, name);
  return names.get(key);
}

// The cell and the position of the output that shows the widget `modelId`; null if the document has none.
function findOutput(context, modelId) {
  for (const cell of context.model.cells) {
    for (let i = 0; i < (cell.outputs?.length ?? 0); i++) {
      if (cell.outputs.get(i).data?.[WIDGET_VIEW]?.model_id === modelId) return { cell, index: i };
    }
  }
  return null;
}

function setOutput({ cell, index }, data) {
  cell.outputs.set(index, { output_type: "display_data", data, metadata: {} });
}

// Put `data` in the place of the widget, as what a save stores. Return whether the document has it now.
function replaceOutput(model, modelId, data) {
  const context = documentOf(model);
  const place = context && findOutput(context, modelId);
  if (!place) return false;
  setOutput(place, data);
  return true;
}

// A page that was loaded again gets no output of a cell that was running: JupyterLab hands the messages of a
// cell to the page that sent it. They do arrive, though, so this takes in those of one cell, after the output
// that shows the card, until the cell has ended. `recordStored` is called when the record has replaced the card.
// Return a function that stops it; null if it cannot be done.
function continueOutputs(model, { modelId, displayId, parent, count }, recordStored) {
  const context = documentOf(model);
  const place = context && findOutput(context, modelId);
  const signal = context?.sessionContext.iopubMessage;
  if (!place || !signal) return null;
  const { cell } = place;
  const outputs = cell.outputs;
  const positions = new Map([[displayId, place.index]]); // of outputs, by display id
  const wasDirty = context.model.dirty;

  function add(output, id) {
    outputs.add(output);
    if (id) positions.set(id, outputs.length - 1);
  }

  function take(_sender, message) {
    if (message.parent_header?.msg_id !== parent) return;
    const { content } = message;
    const kind = message.header.msg_type;
    const id = content.transient?.display_id;
    if (kind === "stream") add({ output_type: kind, name: content.name, text: content.text });
    else if (kind === "error") add({ output_type: kind, ename: content.ename, evalue: content.evalue, traceback: content.traceback });
    else if (kind === "display_data") add({ output_type: kind, data: content.data, metadata: content.metadata }, id);
    else if (kind === "execute_result") {
      add({ output_type: kind, data: content.data, metadata: content.metadata, execution_count: content.execution_count }, id);
    } else if (kind === "update_display_data" && positions.has(id)) {
      outputs.set(positions.get(id), { output_type: "display_data", data: content.data, metadata: content.metadata });
      if (id === displayId) recordStored();
    } else if (kind === "clear_output") {
      positions.clear();
      outputs.clear(content.wait);
    } else if (kind === "status" && content.execution_state === "idle") end();
  }

  function end() {
    stop();
    cell.executionCount = count;
    // The file still holds the question. A person's own edits are theirs to save.
    if (!wasDirty) void context.save().catch((error) => console.warn("not saved:", error));
  }

  function stop() {
    signal.disconnect(take);
  }
  signal.connect(take);
  return stop;
}

// Call `gone` when the kernel that asked is restarted or ends. Return a function that stops watching.
function watchKernel(model, gone) {
  const statuses = ["restarting", "autorestarting", "terminating", "dead"];
  const session = documentOf(model)?.sessionContext;
  const onStatus = (_sender, status) => statuses.includes(status) && gone("the kernel was restarted or has ended");
  const onKernel = (_sender, change) => change.oldValue && gone("the notebook has another kernel now");
  const onClose = () => gone("it was closed");
  session?.statusChanged.connect(onStatus);
  session?.kernelChanged.connect(onKernel);
  model.on("comm:close", onClose);
  return () => {
    session?.statusChanged.disconnect(onStatus);
    session?.kernelChanged.disconnect(onKernel);
    model.off("comm:close", onClose);
  };
}

// Store in the document that a question is gone, above what the document has for pages without widgets.
function storeGone(model, modelId, root) {
  const context = documentOf(model);
  const place = context && findOutput(context, modelId);
  if (!place) return;
  const { data } = place.cell.outputs.get(place.index);
  const words = [...root.children].map((node) => node.textContent);
  const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const html = words.map((text) => `<div>${escape(text)}</div>`).join("");
  const before = (type, text) => (data[type] ? { [type]: text + [data[type]].flat().join("") } : {});
  setOutput(place, { ...before("text/html", html), ...before("text/plain", `${words.join("\n")}\n`) });
}
