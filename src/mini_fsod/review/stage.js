// The stage: a picture with boxes drawn over it, and the editor of one box.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// The part of the picture that is shown, [x, y, width, height] in its pixels.
let view = [0, 0, 1, 1];

function fitFrame() {
  const stage = byId("stage");
  const scale = Math.min(stage.clientWidth / view[2], stage.clientHeight / view[3]);
  byId("frame").style.width = `${view[2] * scale}px`;
  byId("frame").style.height = `${view[3] * scale}px`;
  byId("boxes").setAttribute("viewBox", view.join(" "));
  return scale;
}

function drawBox(box, kind, label) {
  const [x, y, width, height] = box;
  for (const layer of ["halo", "line"]) {
    byId("boxes").append(shape("rect", { x, y, width, height, class: `${kind} ${layer}` }));
  }
  const size = 12 / fitFrame();
  const hidden = x > view[0] + view[2] || y > view[1] + view[3] || x + width < view[0]
    || y + height < view[1];
  if (!label || hidden || !Number.isFinite(size)) return;
  const text = shape("text", {
    x: Math.max(x, view[0]) + size / 3, y: Math.max(y - size / 3, view[1] + size * 1.1),
    "font-size": size, "stroke-width": size / 4,
  });
  text.textContent = label;
  byId("boxes").append(text);
}

// The editor: `edit` is {box, done, cancel} while a box is drawn or changed.
let edit = null;
let drag = null;
const NEAR = 14; // pixels on the screen from which a corner or an edge is taken

// `waits`: the mouse may draw, but keys keep their meaning until there is a box.
function startEdit(box, done, waits = false) {
  edit = { box: box && [...box], done, waits, empty: !box };
  byId("frame").classList.add("editing");
  byId("editing").replaceChildren(
    box ? "Drag a corner, an edge or the box, or draw a new one. " : "Drag a box around the object. ",
    element("span", { class: "with-keys" }, "Arrow keys move the box, with Shift they resize it. "),
    element("button", { type: "button", class: "small", onclick: finishEdit }, "Save ⏎"),
    element("button", { type: "button", class: "small", onclick: cancelEdit }, "Cancel Esc"),
  );
  byId("editing").hidden = waits;
  byId("about").hidden = !waits;
  showEdit();
}

function finishEdit() {
  if (!edit || !edit.box) return;
  const { box, done } = edit;
  stopEdit();
  done(box);
}

function cancelEdit() {
  stopEdit();
  redraw();
}

function stopEdit() {
  edit = drag = null;
  byId("frame").classList.remove("editing");
  byId("editing").hidden = true;
  byId("about").hidden = false;
}

function showEdit() {
  const svg = byId("boxes");
  svg.querySelectorAll(".edit, .handle").forEach((node) => node.remove());
  if (!edit || !edit.box) return;
  drawBox(edit.box, "edit");
  const [x, y, width, height] = edit.box;
  const side = 10 / fitFrame();
  for (const [cx, cy] of [[x, y], [x + width, y], [x, y + height], [x + width, y + height]]) {
    svg.append(shape("rect", {
      x: cx - side / 2, y: cy - side / 2, width: side, height: side, class: "handle",
    }));
  }
}

function pointOf(event) {
  const frame = byId("frame").getBoundingClientRect();
  const clamp = (value, low, size) => Math.min(Math.max(value, low), low + size);
  return [
    clamp(view[0] + (event.clientX - frame.left) / frame.width * view[2], view[0], view[2]),
    clamp(view[1] + (event.clientY - frame.top) / frame.height * view[3], view[1], view[3]),
  ];
}

// Which sides of the box a point takes: [left, top, right, bottom], or null outside of it.
function grip([px, py]) {
  if (!edit.box) return null;
  const near = NEAR / fitFrame();
  const [x, y, width, height] = edit.box;
  if (px < x - near || py < y - near || px > x + width + near || py > y + height + near) return null;
  const left = Math.abs(px - x) < near, right = !left && Math.abs(px - x - width) < near;
  const top = Math.abs(py - y) < near, bottom = !top && Math.abs(py - y - height) < near;
  return left || right || top || bottom ? [left, top, right, bottom] : [true, true, true, true];
}

function startDrag(event) {
  if (!edit || event.button > 0) return;
  event.preventDefault();
  byId("frame").setPointerCapture(event.pointerId);
  const from = pointOf(event), sides = grip(from);
  drag = { from, sides, box: edit.box && [...edit.box] };
}

function moveDrag(event) {
  if (!drag) return;
  const to = pointOf(event);
  if (drag.sides === null) {
    edit.box = [
      Math.min(drag.from[0], to[0]), Math.min(drag.from[1], to[1]),
      Math.abs(to[0] - drag.from[0]), Math.abs(to[1] - drag.from[1]),
    ];
  } else {
    changeBox(drag.box, drag.sides, to[0] - drag.from[0], to[1] - drag.from[1]);
  }
  showEdit();
}

function endDrag() {
  if (!drag) return;
  const drawn = drag.sides === null;
  drag = null;
  if (drawn && Math.min(edit.box[2], edit.box[3]) * fitFrame() < 4) edit.box = null; // a click
  if (drawn && edit.box && edit.empty) finishEdit();
  else showEdit();
}

function changeBox(box, [left, top, right, bottom], dx, dy) {
  let [x0, y0, x1, y1] = [box[0], box[1], box[0] + box[2], box[1] + box[3]];
  if (left) x0 += dx;
  if (top) y0 += dy;
  if (right) x1 += dx;
  if (bottom) y1 += dy;
  [x0, x1] = [Math.min(x0, x1), Math.max(x0, x1)];
  [y0, y1] = [Math.min(y0, y1), Math.max(y0, y1)];
  edit.box = [x0, y0, Math.max(x1 - x0, 1), Math.max(y1 - y0, 1)];
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function editKey(event) {
  if (edit.waits && !edit.box) return false;
  const arrow = ARROWS[event.key];
  if (event.key === "Escape") cancelEdit();
  else if (event.key === "Enter") finishEdit();
  else if (arrow) {
    const step = Math.max(view[2], view[3]) / (event.altKey ? 200 : 60);
    const middle = [view[0] + view[2] * .35, view[1] + view[3] * .35, view[2] * .3, view[3] * .3];
    const box = edit.box || middle;
    const sides = event.shiftKey ? [false, false, true, true] : [true, true, true, true];
    changeBox(box, sides, arrow[0] * step, arrow[1] * step);
    showEdit();
  } else return false;
  return true;
}

byId("frame").addEventListener("pointerdown", startDrag);
byId("frame").addEventListener("pointermove", moveDrag);
byId("frame").addEventListener("pointerup", endDrag);
byId("frame").addEventListener("pointercancel", endDrag);
