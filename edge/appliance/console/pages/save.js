// Texts that a page gives to the person as a file.

/** Save a text as a file. @param {string} name @param {string} text @param {string} type */
export function saveText(name, text, type = "text/plain") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1_000);
}
