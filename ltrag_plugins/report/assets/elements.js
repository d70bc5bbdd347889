// Elements made of text alone: nothing from the data is ever read as HTML.
const byId = (id) => document.getElementById(id);
const UNSEEN = /([\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff\u{e0000}-\u{e007f}])/u;

/** An element of a class, with children: elements, or texts. */
function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

/** Text from strangers: what cannot be seen or turns the reading order is shown by its number. */
function said(tag, name, text) {
  const element = make(tag, name);
  element.dir = 'auto';
  String(text).split(UNSEEN).forEach((piece, i) => {
    if (i % 2 === 0) element.append(document.createTextNode(piece));
    else {
      const code = piece.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
      element.append(make('span', 'unseen', `U+${code}`));
    }
  });
  return element;
}

const parsed = new Map();
/** The value of a data block, read when it is first asked for. */
function data(id) {
  if (!parsed.has(id)) parsed.set(id, JSON.parse(byId(id).textContent));
  return parsed.get(id);
}

const number = (value, digits = 3) =>
  value === null || value === undefined ? '–' : String(Number(value.toPrecision(digits)));
const many = (count, one) => `${count} ${one}${count === 1 ? '' : /(s|ch)$/.test(one) ? 'es' : 's'}`;
