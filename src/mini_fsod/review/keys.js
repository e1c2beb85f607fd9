// Keys and buttons, and the start.

const KEYS = [
  ["A", "accept: the box and the class are right", () => verdict("accept")],
  ["R", "reject: no such object is there", () => verdict("reject")],
  ["⇧A", "accept the rest of the page", acceptRest],
  ["E", "redraw the box, and accept it", redrawBox],
  ["L", "change the class: then press its number", relabel],
  ["D", "add a box that was missed", draw],
  ["S", "skip, decide later", skip],
  ["U", "undo", undo],
  ["N", "next class", nextClass],
  ["Z", "zoom out to the whole picture, and back", toggleWhole],
  ["←", "previous box", () => at > 0 && show(at - 1)],
  ["→", "next box", () => at + 1 < page.items.length && show(at + 1)],
  ["?", "show the keys", () => byId("keys").showModal()],
];
const SAME_KEY = { Enter: "A", Delete: "R", x: "R", ArrowLeft: "←", ArrowRight: "→", " ": "Z" };

function onKey(event) {
  if (byId("keys").open) return;
  const onButton = event.target.closest?.("button") && ["Enter", " "].includes(event.key);
  if (onButton && !edit) return;
  if (edit && editKey(event)) { event.preventDefault(); return; }
  const isUndo = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z";
  if (!isUndo && (event.ctrlKey || event.metaKey || event.altKey)) return;
  if (!byId("naming").hidden) {
    if (event.key === "Escape") closeNaming();
    const button = byId("naming").querySelectorAll("button")[event.key - 1];
    if (button) { button.click(); event.preventDefault(); return; }
  }
  const plain = SAME_KEY[event.key] || event.key.toUpperCase();
  const key = isUndo ? "U" : event.shiftKey && plain === "A" ? "⇧A" : plain;
  const found = KEYS.find(([name]) => name === key);
  if (!found) return;
  event.preventDefault();
  found[2]();
}

const BUTTONS = {
  accept: () => verdict("accept"), reject: () => verdict("reject"), rest: acceptRest,
  edit: redrawBox, relabel, draw, skip, undo, next: nextClass, whole: toggleWhole,
  help: () => byId("keys").showModal(),
};

for (const [id, action] of Object.entries(BUTTONS)) byId(id).addEventListener("click", action);
document.addEventListener("keydown", onKey);
new ResizeObserver(() => {
  if (edit) { fitFrame(); showEdit(); } else if (current()) redraw();
}).observe(byId("stage"));
window.addEventListener("beforeunload", (event) => { if (unsaved.length) event.preventDefault(); });
start();
