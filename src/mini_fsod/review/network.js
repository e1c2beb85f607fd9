// The server: requests, pictures that are fetched ahead, and saving.

async function ask(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` } };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const about = await answer.json().catch(() => ({}));
    const error = new Error([about.error, about.fix].filter(Boolean).join(" ") || answer.statusText);
    error.status = answer.status;
    throw error;
  }
  return answer;
}

// Pictures that were fetched, the latest last; neighbours are fetched ahead.
const pictures = new Map();
const PICTURES_KEPT = 160;

function pictureUrl(path) {
  const known = pictures.get(path);
  if (known) {
    pictures.delete(path);
    pictures.set(path, known);
    return known;
  }
  const made = ask(path).then((answer) => answer.blob()).then((blob) => URL.createObjectURL(blob));
  made.catch(() => pictures.delete(path));
  pictures.set(path, made);
  if (pictures.size > PICTURES_KEPT) {
    const [oldest, url] = pictures.entries().next().value;
    pictures.delete(oldest);
    url.then((old) => URL.revokeObjectURL(old), () => {});
  }
  return made;
}

// Saving: decisions leave one after the other, and are shown before the disk has them.

const unsaved = [];
let saving = false;

async function save() {
  if (saving) return;
  saving = true;
  while (unsaved.length) {
    say(`Saving ${unsaved.length} …`, "saving");
    try {
      const { path, body, then } = unsaved[0];
      const result = await (await ask(path, body)).json();
      unsaved.shift();
      overview.classes = result.classes;
      then(result);
      showClasses();
    } catch (error) {
      saving = false;
      say(`${unsaved.length} not saved`, "failed");
      if (error.status >= 400 && error.status < 500 && error.status !== 403) {
        unsaved.shift(); // the server will not take it: show what it has
        fail(error.message, () => start());
      } else {
        fail(error.status ? error.message : "The server does not answer. Is mini review still "
          + "running? After a restart, open the address it prints: what was saved is kept.", save);
      }
      return;
    }
  }
  saving = false;
  byId("problem").hidden = true;
  say("✓ All saved", "saved");
}

function send(path, body, then = () => {}) {
  unsaved.push({ path, body, then });
  return save();
}

function say(text, state) {
  byId("saved").textContent = text;
  byId("saved").dataset.state = state;
}

function fail(text, retry) {
  byId("problem-text").textContent = text;
  byId("problem").hidden = false;
  byId("retry").onclick = () => { byId("problem").hidden = true; retry(); };
}
