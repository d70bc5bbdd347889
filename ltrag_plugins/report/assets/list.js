// The list of questions: searched, filtered, a page at a time.
const PAGE = 25;
const index = data('index');
const state = { shown: [], page: 0 };
const haystacks = [];

const plain = (text) => String(text).toLowerCase().normalize('NFKC');
function haystack(i) {
  if (haystacks[i] === undefined) {
    const { q, a, r, i: id } = index.questions[i];
    haystacks[i] = plain([q, id, ...a, ...Object.values(r).map((one) => one.p)].join('\n'));
  }
  return haystacks[i];
}

const OUTCOMES = {
  all: () => true,
  right: (answers) => answers.some((one) => verdictOf(one) === 'right'),
  wrong: (answers) => answers.some((one) => verdictOf(one) === 'wrong'),
  failed: (answers) => answers.some((one) => verdictOf(one) === 'failed'),
  mixed: (answers) => new Set(answers.map((one) => one.ok)).size > 1,
  on: (answers) => answers.some((one) => one.d && one.d.on),
  off: (answers) => answers.some((one) => one.d && !one.d.on),
};

function filtered() {
  const words = plain(byId('search').value).split(/\s+/).filter(Boolean);
  const method = byId('method').value;
  const outcome = OUTCOMES[byId('outcome').value];
  return index.questions.map((_, i) => i).filter((i) => {
    const { r } = index.questions[i];
    const answers = method === '' ? Object.values(r) : r[method] ? [r[method]] : [];
    return outcome(answers) && words.every((word) => haystack(i).includes(word));
  });
}

function show(page) {
  const pages = Math.max(1, Math.ceil(state.shown.length / PAGE));
  state.page = Math.min(Math.max(page, 0), pages - 1);
  const start = state.page * PAGE;
  const here = state.shown.slice(start, start + PAGE);
  byId('list').replaceChildren(...here.map((i) => questionItem(i, index)));
  const all = index.questions.length.toLocaleString('en');
  byId('count').textContent = here.length
    ? `${start + 1}–${start + here.length} of ${state.shown.length.toLocaleString('en')}` +
      (state.shown.length < index.questions.length ? `, out of ${all} questions` : ' questions')
    : `None of ${all} questions fits; search for less, or show all.`;
  byId('pager').hidden = pages === 1;
  byId('place').textContent = `Page ${state.page + 1} of ${pages}`;
  byId('previous').disabled = state.page === 0;
  byId('next').disabled = state.page === pages - 1;
}

function refresh() {
  state.shown = filtered();
  show(0);
}

function turn(by) {
  show(state.page + by);
  byId('questions').scrollIntoView();
}

let waiting = 0;
byId('search').addEventListener('input', () => {
  clearTimeout(waiting);
  waiting = setTimeout(refresh, 120);
});
byId('filters').addEventListener('submit', (event) => event.preventDefault());
for (const id of ['method', 'outcome']) byId(id).addEventListener('change', refresh);
byId('previous').addEventListener('click', () => turn(-1));
byId('next').addEventListener('click', () => turn(1));
for (const one of document.querySelectorAll('[data-scripted]')) one.hidden = false;
byId('method').append(new Option('any', ''), ...index.cells.map((cell, i) => new Option(cell, i)));
refresh();
