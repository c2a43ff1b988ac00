// The form: it checks while a person types, and saves the file. Nothing is stored, and nothing leaves the page.

const inputs = new Map(RULES.fields.map(({ name }) => [name, document.getElementById(name)]));
const touched = new Set();
const KEEP_SPACES = new Set(["wifi.ssid", "wifi.password", "wifi.login.password", "hub.proxy.password"]);

function readValues() {
  const values = {};
  for (const { name, many } of RULES.fields) {
    // Half of a surrogate pair is no character (Unicode, D75), and could not be saved.
    const text = inputs.get(name).value.replace(/\p{Cs}/gu, "\ufffd");
    if (many) {
      const lines = text.split("\n").map(each => each.trim()).filter(each => each);
      if (lines.length) values[name] = lines;
    } else if (KEEP_SPACES.has(name) ? text : text.trim()) {
      values[name] = KEEP_SPACES.has(name) ? text : text.trim();
    }
  }
  return values;
}

function show(all) {
  const values = readValues();
  const faults = listFaults(values);
  for (const [name, input] of inputs) {
    const own = faults.filter(each => each.name === name && (all || touched.has(name))).map(each => each.words);
    document.getElementById(`${name}-fault`).textContent = own.join("\n");
    input.setAttribute("aria-invalid", own.length ? "true" : "false");
  }
  for (const section of document.querySelectorAll("details"))
    if (all && section.querySelector('[aria-invalid="true"]')) section.open = true;
  const preview = document.getElementById("preview");
  preview.textContent = faults.length ? "" : makeFile(hideSecrets(values));
  document.getElementById("preview-section").hidden = faults.length > 0;
  return { values, faults };
}

function hideSecrets(values) {
  const hidden = RULES.fields.filter(each => each.secret && values[each.name] !== undefined);
  return { ...values, ...Object.fromEntries(hidden.map(each => [each.name, RULES.placeholder])) };
}

function save(event) {
  event.preventDefault();
  const { values, faults } = show(true);
  const state = document.getElementById("state");
  if (faults.length) {
    state.textContent = faults.length === 1 ? "1 problem: nothing was saved" : `${faults.length} problems: nothing was saved`;
    document.querySelector('[aria-invalid="true"]')?.focus();
    return;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([makeFile(values)], { type: "application/yaml" }));
  link.download = RULES.file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // Safari reads it some time after the click
  state.textContent = `${RULES.file} is saved: copy it to the drive WAYPOST of the card, then delete it from this machine`;
}

for (const [name, input] of inputs) {
  input.addEventListener("input", () => show(false));
  input.addEventListener("blur", () => {
    if (input.value) touched.add(name);
    show(false);
  });
}
document.getElementById("reveal").addEventListener("change", event => {
  for (const { name, secret: hidden } of RULES.fields) {
    if (!hidden) continue;
    const input = inputs.get(name);
    if (input.tagName === "TEXTAREA") input.classList.toggle("secret", !event.target.checked);
    else input.type = event.target.checked ? "text" : "password";
  }
});
document.querySelector("form").addEventListener("submit", save);
document.querySelector("form").hidden = false;
show(false);
