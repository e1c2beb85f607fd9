// The review: which items are on the page, what was decided, and the keys.

let overview = null;
let page = { class: null, items: [], references: [] };
let at = -1; // the item on the stage, in page.items
let following = null; // the next page, fetched ahead
let chosen = null; // the class that the person has chosen; null: the order decides
let whole = false; // the whole picture, not the box alone
const skipped = [];
const drawing = () => overview.mode === "draw";
const current = () => page.items[at];
const article = (name) => (/^[aeiou]/i.test(name) ? "an" : "a");
const number = (value) => value.toLocaleString("en");

// Deciding

function decide(items, verdict, changes = {}) {
  if (!byId("problem").hidden || !items.length) return;
  for (const item of items) {
    item.state = verdict;
    item.as_class = changes.class ?? null;
    item.as_box = changes.box ?? null;
  }
  const decisions = items.map((item) => ({ item: item.id, do: verdict, ...changes }));
  send("/api/decide", { decisions }, (result) => result.items.forEach(takeOver));
  showStrip();
}

function takeOver(item) {
  const index = page.items.findIndex((other) => other.id === item.id);
  if (index >= 0) page.items[index] = item;
  showStrip();
  if (index === at) redraw();
}

function verdict(what) {
  const item = current();
  if (!item) return;
  if (item.box === null) { skip(); return; }
  decide([item], what);
  forward();
}

function acceptRest() {
  if (drawing()) return;
  decide(page.items.filter((item) => item.state === "open" && item.box && !item.error), "accept");
  forward();
}

function addBox(box) {
  const item = current(), name = page.class;
  send("/api/decide", { decisions: [{ item: item.id, do: "draw", class: name, box }] }, (result) => {
    item.others.push(...result.items.map((made) => (
      { id: made.id, kind: "accepted", class: made.class, box: made.box })));
    if (item.box === null) item.state = "accept";
    showStrip();
    redraw();
    if (drawing()) waitForBox();
  });
}

function removeBox(other) {
  const item = current();
  send("/api/decide", { decisions: [{ item: other.id, do: "reject" }] }, () => {
    item.others = item.others.filter((box) => box !== other);
    if (item.box === null && !item.others.some((box) => box.kind === "accepted")) item.state = "open";
    showStrip();
    redraw();
    if (drawing()) waitForBox();
  });
}

async function undo() {
  send("/api/undo", {}, async ({ item }) => {
    if (!item) return;
    const index = page.items.findIndex((other) => other.id === item.id);
    if (item.score === null) await load(chosen, page.items[at]?.id); // a drawn box
    else if (index >= 0) { page.items[index] = item; await show(index); }
    else await load(chosen, item.id);
  });
}

function skip() {
  if (current()) skipped.push(current().id);
  forward(true);
}

// The next undecided item of this page, or the next page.
async function forward(past = false) {
  const open = (item, index) => item.state === "open" && !(past && index === at)
    && !skipped.includes(item.id);
  const after = page.items.findIndex((item, index) => index > at && open(item, index));
  const next = after >= 0 ? after : page.items.findIndex(open);
  if (next >= 0) await show(next);
  else if (following) { take(await following); await show(firstOpen()); }
  else await load(chosen);
}

function nextClass() {
  if (!overview.classes.length) return;
  const names = overview.classes.map((row) => row.name);
  const name = names[(names.indexOf(page.class) + 1) % names.length];
  if (drawing()) { page.class = name; showClasses(); redraw(); waitForBox(); return; }
  chosen = name;
  load(name);
}

// Pages

function pagePath(name, item, skip) {
  const query = new URLSearchParams();
  if (name) query.set("class", name);
  if (item !== undefined) query.set("item", item);
  if (skip.length) query.set("skip", skip.slice(-400).join(","));
  return `/api/page?${query}`;
}

async function load(name, item) {
  try {
    take(await (await ask(pagePath(name, item, skipped))).json());
    await show(item === undefined ? firstOpen() : 0);
  } catch (error) {
    fail(error.message || "The server does not answer.", () => load(name, item));
  }
}

function take(loaded) {
  following = null;
  const kept = drawing() && page.class;
  page = loaded;
  if (kept) page.class = kept;
  overview.classes = page.classes;
  at = -1;
  showStrip();
  showClasses();
  showReferences();
}

function firstOpen() {
  const index = page.items.findIndex((item) => item.state === "open");
  return index < 0 && page.items.length ? 0 : index;
}

function fetchAhead() {
  const left = page.items.filter((item) => item.state === "open");
  for (const item of page.items.slice(at + 1, at + 5)) pictureUrl(imagePath(item)).catch(() => {});
  if (left.length > 6 || following) return;
  const skip = [...skipped, ...page.items.map((item) => item.id)];
  following = ask(pagePath(chosen, undefined, skip)).then((answer) => answer.json());
  following.then((next) => {
    for (const item of next.items.slice(0, 3)) pictureUrl(imagePath(item)).catch(() => {});
    for (const item of next.items) pictureUrl(tilePath(item)).catch(() => {});
  }, () => { following = null; });
}

// Showing

function imagePath(item, all = whole) {
  const stage = byId("stage"), scale = Math.min(window.devicePixelRatio || 1, 2);
  const wanted = Math.max(stage.clientWidth, stage.clientHeight) * scale;
  const side = Math.min(Math.ceil(wanted / 320) * 320, 1600);
  return `/api/image/${item.id}?side=${side}${all ? "&whole=1" : ""}`;
}

const tilePath = (item) => `/api/image/${item.id}?side=224`;

async function show(index) {
  stopEdit();
  closeNaming();
  at = index;
  const item = current();
  markCurrent();
  byId("frame").hidden = !item || Boolean(item.error);
  byId("empty").hidden = !byId("frame").hidden;
  for (const id of ["accept", "reject", "rest", "edit", "relabel", "draw", "whole", "skip"]) {
    byId(id).disabled = !item || Boolean(item.error && id !== "skip");
  }
  if (!item) { showEnd(); return; }
  if (item.error) { byId("empty").textContent = item.error; redraw(); return; }
  try {
    const url = await pictureUrl(imagePath(item));
    if (current() !== item && current()?.id !== item.id) return; // meanwhile another one is shown
    byId("picture").src = url;
    await byId("picture").decode().catch(() => {});
    redraw();
    byId("frame").dataset.shown = item.id;
    if (drawing()) waitForBox();
  } catch (error) {
    byId("frame").hidden = true;
    byId("empty").hidden = false;
    byId("empty").textContent = error.message;
  }
  fetchAhead();
}

function showEnd() {
  byId("question").textContent = drawing() ? "That was the last picture" : "Nothing left to review";
  byId("empty").textContent = drawing()
    ? "Press Ctrl-C where mini review runs; the boxes are saved."
    : `No box of ${page.class} is left to review. Choose another class, or press Ctrl-C where mini `
      + "review runs and train on the result with mini run.";
  byId("about").textContent = "";
}

function redraw() {
  const item = current();
  byId("chips").replaceChildren();
  if (!item) return;
  const name = item.as_class || item.class || page.class;
  const tag = item.box === null ? null
    : item.score === null ? "drawn by hand"
    : item.mined ? "mined" : "not mined, below the threshold";
  byId("question").replaceChildren(
    item.box === null ? `Draw a box around each ${page.class}` : `Is this ${article(name)} ${name}?`,
    ...(tag ? [element("span", { class: "tag" }, tag)] : []),
  );
  const score = item.score === null ? "" : `score ${item.score.toFixed(3)} · `;
  const said = { open: "", accept: "✓ accepted · ", reject: "✕ rejected · " }[item.state];
  byId("about").textContent = `${at + 1} of ${page.items.length} · ${item.box ? said : ""}${score}`
    + item.picture;
  if (item.error) return;
  const all = whole || item.box === null;
  view = all ? [0, 0, ...item.size] : item.view;
  byId("boxes").replaceChildren();
  fitFrame();
  for (const other of item.others) drawBox(other.box, `thin ${other.kind}`, other.class);
  if (item.box) drawBox(item.as_box || item.box, item.state, "");
  byId("picture").alt = item.box
    ? `${item.picture}, with a box that may show ${item.class}` : item.picture;
  byId("accept").firstChild.textContent = item.box === null ? "Next picture →" : "✓ Accept";
  byId("chips").append(...item.others.filter((box) => box.kind === "accepted").map((box) => (
    element("button", { type: "button", class: "small", onclick: () => removeBox(box) },
      `${box.class} ✕`))));
  showEdit();
}

function showStrip() {
  byId("strip").replaceChildren(...page.items.map((item, index) => {
    const image = element("img", { alt: "", loading: "lazy" });
    pictureUrl(tilePath(item)).then((url) => { image.src = url; }, () => {});
    const svg = shape("svg", {
      viewBox: (item.view || [0, 0, 1, 1]).join(" "), preserveAspectRatio: "xMidYMid meet",
    });
    const box = item.as_box || item.box;
    if (box) {
      const [x, y, width, height] = box;
      svg.append(shape("rect", { x, y, width, height }));
    }
    const mark = { open: item.box ? (item.mined ? "mined" : "cand.") : "", accept: "✓", reject: "✕" }[item.state];
    const score = item.score === null ? "" : item.score.toFixed(2);
    const label = `Box ${index + 1}, ${{ open: "open" }[item.state] || `${item.state}ed`}`;
    return element("li", { class: item.state }, element(
      "button", { type: "button", "aria-label": label, onclick: () => show(index) },
      image, svg, element("span", { class: "mark" }, element("span", {}, mark || "·"),
        element("span", {}, score))));
  }));
  const open = page.items.filter((item) => item.state === "open").length;
  byId("page-title").replaceChildren(drawing() ? "Pictures" : `On this page: ${page.class ?? ""}`,
    element("span", {}, drawing() ? "" : ` · ${open} of ${page.items.length} open`));
  markCurrent();
}

function markCurrent() {
  [...byId("strip").children].forEach((row, index) => {
    const button = row.firstChild;
    if (index === at) {
      button.setAttribute("aria-current", "true");
      row.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else button.removeAttribute("aria-current");
  });
}

function showReferences() {
  byId("references").hidden = !page.references?.length;
  byId("references").firstChild.textContent = `What ${article(page.class)} ${page.class} looks like: the shots`;
  byId("references").lastChild.replaceChildren(...(page.references ?? []).map((item) => {
    const image = element("img", { alt: `A shot of ${item.class}` });
    pictureUrl(tilePath(item)).then((url) => { image.src = url; }, () => {});
    return image;
  }));
}

function showClasses() {
  const rows = overview.classes.map((row) => {
    const share = row.goal ? row.accepted / row.goal : row.mined ? row.decided / row.mined : 1;
    const bar = element("div");
    bar.style.width = `${Math.min(share, 1) * 100}%`;
    const count = row.goal ? `${row.accepted} of ${row.goal}`
      : `${number(row.decided)} of ${number(row.mined)}`;
    const about = row.goal ? "boxes drawn"
      : `✓ ${number(row.accepted)}  ✕ ${number(row.rejected)}  · ${number(row.candidates)} `
        + "more candidates";
    const choose = () => {
      if (drawing()) { page.class = row.name; showClasses(); redraw(); waitForBox(); return; }
      chosen = row.name;
      load(chosen);
    };
    return element("div", { role: "listitem" }, element(
      "button", { type: "button", onclick: choose, "aria-current": row.name === page.class || null },
      element("div", { class: "row" }, element("span", { class: "name" }, row.name),
        element("span", {}, count)),
      element("div", { class: "bar" }, bar), element("small", {}, about)));
  });
  byId("classes").replaceChildren(...rows);
  const sum = (key) => overview.classes.reduce((total, row) => total + (row[key] ?? 0), 0);
  byId("total").textContent = drawing() ? `${sum("accepted")} ${sum("accepted") === 1 ? "box" : "boxes"} drawn`
    : `${number(sum("decided"))} of ${number(sum("mined"))} mined boxes reviewed · `
      + `✓ ${number(sum("accepted"))} · ✕ ${number(sum("rejected"))}`;
}

// Changing a box, its class, or what is shown

function redrawBox() {
  const item = current();
  if (!item || item.box === null) return;
  startEdit(item.as_box || item.box, (box) => {
    decide([item], "accept", { box, ...(item.as_class ? { class: item.as_class } : {}) });
    forward();
  });
}

function draw() {
  if (current()) startEdit(null, addBox);
}

function waitForBox() {
  if (current() && !current().error) startEdit(null, addBox, true);
}

function relabel() {
  const item = current();
  if (!item || item.box === null) return;
  byId("naming").replaceChildren("It is a", ...overview.classes.map((row, index) => element(
    "button", { type: "button", onclick: () => {
      closeNaming();
      decide([item], "accept", { class: row.name, ...(item.as_box ? { box: item.as_box } : {}) });
      forward();
    } }, `${row.name} `, ...(index < 9 ? [element("kbd", {}, index + 1)] : []))));
  byId("naming").hidden = false;
}

function closeNaming() { byId("naming").hidden = true; }

function toggleWhole() {
  whole = !whole;
  byId("whole").setAttribute("aria-pressed", whole);
  show(at);
}

async function start() {
  try {
    const first = ask(pagePath(chosen, undefined, skipped));
    overview = await (await ask("/api/overview")).json();
    take(await (await first).json());
  } catch (error) {
    fail(error.message || "The server does not answer.", start);
    return;
  }
  document.title = `${overview.title} · mini review`;
  byId("title").textContent = `${drawing() ? "Draw boxes in" : "Review of"} ${overview.title}`;
  byId("order").textContent = overview.order;
  document.body.dataset.mode = overview.mode;
  for (const id of ["reject", "rest", "edit", "relabel", "whole"]) byId(id).hidden = drawing();
  if (overview.classes.length < 2) byId("next").hidden = byId("relabel").hidden = true;
  byId("key-list").replaceChildren(...KEYS.flatMap(([name, about]) => [
    element("dt", {}, element("kbd", {}, name)), element("dd", {}, about)]));
  await show(firstOpen());
}
