// The steps of one answer.

/** A prompt, whose passages are kept once and named by number. */
const whole = (text) =>
  Array.isArray(text)
    ? text.map((part) => (typeof part === 'number' ? data('passages')[part][2] : part)).join('')
    : text;

const STEPS = {
  asked: (one) => [
    make('small', '', 'prompt'), said('div', 'text', whole(one.prompt)),
    make('small', '', 'reply'), said('div', 'text reply', one.reply),
  ],
  fetched: (one) => [
    make('small', '', 'query'), said('div', 'text', one.query),
    make('small', '', 'found'), passageList(one.passages.map((i) => [...named(i), i])),
  ],
  scored: (one) => [
    make('small', '', 'prompt'), said('div', 'text', one.prompt),
    make('small', '', 'scored'), said('div', 'text', one.text),
    make('small', '', `log-probability ${number(one.logprob, 4)}`),
  ],
};
const TITLES = {
  asked: (parts) => `Asked the model ${many(parts.length, 'prompt')}`,
  fetched: (parts) => `Searched for ${many(parts.length, 'query').replace('querys', 'queries')}`,
  scored: (parts) => `Scored ${many(parts.length, 'text')}`,
};
const MOST = 20;

const named = (i) => {
  const [id, title] = data('passages')[i];
  return [title, id, null];
};

function step(one) {
  const [kind, parts] = Object.entries(one)[0] ?? ['empty', []];
  const known = kind in STEPS && Array.isArray(parts);
  const item = make('li', '', make('b', '', known ? TITLES[kind](parts) : kind));
  if (!known) {
    item.append(said('div', 'text', JSON.stringify(parts, null, 1)));
    return item;
  }
  for (const part of parts.slice(0, MOST)) {
    try {
      item.append(make('div', 'pair', ...STEPS[kind](part)));
    } catch {
      item.append(said('div', 'text', JSON.stringify(part, null, 1)));
    }
  }
  if (parts.length > MOST) item.append(make('small', '', `and ${parts.length - MOST} more`));
  return item;
}

/** Rows of [title, id, score, number of its text]. */
function passageList(rows) {
  const list = make('ol', 'passages');
  for (const [title, id, score, text] of rows) {
    const name = said('span', '', title || id || 'passage');
    const line = make('span', '', name, score === null ? '' : `, score ${number(score, 4)}`);
    if (text === undefined) {
      list.append(make('li', '', line));
      continue;
    }
    const details = make('details', '', make('summary', '', line));
    details.addEventListener('toggle', () => {
      if (details.children.length === 1) details.append(said('div', 'text', data('passages')[text][2]));
    });
    list.append(make('li', '', details));
  }
  return list;
}

/** A button that shows the steps, made when it is first pressed. */
function traceButton(question, place, cell, steps) {
  const button = make('button', 'open', `Show ${many(steps, 'step')}`);
  button.type = 'button';
  button.setAttribute('aria-expanded', 'false');
  let list = null;
  button.addEventListener('click', () => {
    if (list === null) {
      const found = data(`traces-${question.t}`)[place][cell];
      list = make('ol', 'trace', ...found.map(step));
      button.after(list);
      for (const text of list.querySelectorAll('.text')) {
        if (text.scrollHeight > text.clientHeight) text.tabIndex = 0;  // so that keys scroll it
      }
    } else list.hidden = !list.hidden;
    button.setAttribute('aria-expanded', String(!list.hidden));
    button.textContent = `${list.hidden ? 'Show' : 'Hide'} ${many(steps, 'step')}`;
  });
  return button;
}
